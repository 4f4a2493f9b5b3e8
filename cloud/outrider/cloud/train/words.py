"""Short word lists and sentence frames from which corpus prompts are put together. All written for this project.

A frame's `{name}` is filled from the list of that name. Frames that end in an open phrase are finished by the target.
"""

from __future__ import annotations

LISTS: dict[str, tuple[str, ...]] = {
    "topic": tuple(
        """the water cycle|black holes|honey bees|the history of bread|volcanoes|electric cars
        |the stock market|chess|gardening|the Roman Empire|vaccines|sleep|jazz music|ocean currents
        |the printing press|photosynthesis|dinosaurs|the moon|climate change|coffee|bicycles|basketball
        |poetry|public speaking|time management|friendship|homework|machine learning|databases
        |the internet|cooking pasta|learning a language|travel on a budget|meditation|running
        |job interviews|small businesses|saving money|taxes|renting a flat|house plants|cats|dogs
        |birds in winter|whales|glaciers|earthquakes|the human heart|allergies|vitamins|headaches
        |the immune system|gravity|magnets|light|sound|atoms|prime numbers|fractions|probability
        |geometry|algebra|statistics|maps|castles|pirates|Vikings|ancient Egypt|the French Revolution
        |the Cold War|the Silk Road|democracy|elections|human rights|courts|police work|firefighters
        |hospitals|nursing|teaching|school lunches|libraries|museums|painting|photography|films
        |video games|board games|fashion|shoes|perfume|architecture|bridges|trains|aeroplanes|ships
        |space travel|Mars|satellites|robots|batteries|solar power|nuclear energy|oil|plastic waste
        |recycling|forests|deserts|rivers|farming|rice|wheat|cheese|chocolate|wine|tea|soup|salads
        |breakfast|birthday parties|weddings|holidays|camping|fishing|swimming|football|tennis|skiing
        |the Olympics|yoga|stress|anger|loneliness|happiness|courage|honesty|kindness|leadership
        |teamwork|remote work|email|passwords|online safety|social media|newspapers|advertising|prices
        |inflation|banks|insurance|pensions|old age|childhood|parenting|twins|grandparents|neighbours
        |cities|villages|traffic|noise|rain|snow|wind|summer|dreams|memory|habits|jokes|riddles|myths
        |ghosts|dragons|time travel|the sea|islands|mountains|caves""".split("|")
    ),
    "place": tuple(
        """Norway|Peru|Kenya|Japan|Canada|Portugal|Vietnam|Egypt|Iceland|Brazil|Poland|Australia|Morocco
        |Greece|India|Chile|Ireland|Turkey|Mexico|Ghana|Finland|Nepal|Cuba|Italy|South Korea|New Zealand
        |Texas|Ohio|California|Alaska|Florida|London|Chicago|Mumbai|Nairobi|Lisbon|Sydney|Toronto|Berlin
        |Seattle|Cairo|Boston|Glasgow|Madrid|Lima|Dublin|Osaka|Atlanta|Manchester|Denver|Vienna
        |Cape Town|Buenos Aires|Los Angeles|Paris|Houston|Melbourne|Moscow|Athens""".split("|")
    ),
    "person": tuple(
        """Maria Keller|James Okafor|Anna Petrova|David Nguyen|Sarah Collins|Omar Haddad|Linda Brooks
        |Tom Whitaker|Priya Nair|Carlos Mendes|Emily Frost|Kenji Mori|Fatima Diallo|Robert Hale
        |Grace Lindqvist|Peter Novak|Helen Marsh|Ali Rahman|Julia Ferrer|Michael Dunn|Rosa Alvarez
        |Ben Carter|Nadia Hussein|Jack Turner|Chloe Martin|Samuel Adeyemi""".split("|")
    ),
    "event": tuple(
        """a flood that closed the main bridge|the opening of a new hospital|a strike by bus drivers
        |a stolen painting|a school that won a science prize|a fire in a warehouse
        |the rescue of two climbers|a record heat wave|a new law on plastic bags
        |a football final decided by penalties|the trial of a former mayor|a missing fishing boat
        |the discovery of an old shipwreck|a merger of two airlines|a power cut that lasted a day
        |a farmer who saved a horse|a new vaccine study|protests against higher rents
        |the return of wolves|a chess champion aged twelve|a train that left the rails
        |a concert that ended early|a factory that moves abroad|the birth of a panda|a hacked bank
        |an election with a surprising result|a teenager who found a meteorite
        |a storm that delayed flights|a restaurant that feeds the homeless
        |the retirement of a famous goalkeeper|a debate about school uniforms
        |a road accident on a holiday weekend|a court decision on privacy|a film star's charity run
        |a drought|a city that bans cars from its centre|the arrest of a gang of car thieves
        |a rocket launch that was put off|a survey about sleep|an oil spill near the coast
        |a lottery winner who gave everything away|a new tram line""".split("|")
    ),
    "month": tuple(
        "January February March April May June July August September October November December".split()
    ),
    "day": tuple(str(day) for day in range(1, 29)),
    "year": tuple(str(year) for year in range(1801, 2024)),
    "weekday": tuple("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()),
    "number": tuple(
        str(number) for number in (3, 4, 5, 6, 7, 8, 10, 12, 15, 18, 20, 24, 30, 45, 60, 75, 120, 250)
    ),
    "form": tuple(
        """short story|poem|haiku|letter|email|blog post|speech|dialogue|product description|recipe
        |list of tips|song text|cover letter|review|diary entry|news headline|tweet|limerick
        |scene for a play|summary|lesson plan|checklist|thank-you note|complaint|toast for a wedding
        |advertisement|weather report|set of interview questions""".split("|")
    ),
    "reader": tuple(
        """a child|a beginner|an expert|my grandmother|a busy manager|students|a tourist|new parents
        |a job applicant|people over sixty|a friend who is sad|customers|a group of engineers
        |someone who has never heard of it""".split("|")
    ),
    "tone": tuple(
        "funny formal friendly sad angry polite short dramatic simple cheerful serious ironic".split()
    ),
    "language": tuple("French German Spanish Italian Portuguese Dutch Latin Japanese Polish Swedish".split()),
    "verb": tuple(
        """count find get filter sort sum remove check merge split reverse compute replace parse convert
        select group is largest smallest rotate encode decode compare insert validate extract flatten
        multiply match shift""".split()
    ),
    "object": tuple(
        """vowels numbers words digits pairs brackets primes duplicates intervals strings items matrix
        letters dates names factors squares evens prefixes values list palindromes distances scores
        spaces vectors triplets sequence sublists temperatures coins tokens parentheses characters""".split()
    ),
    "arguments": (
        "numbers: List[int]",
        "text: str",
        "n: int",
        "items: List[str]",
        "a: int, b: int",
        "values: List[float]",
        "s: str, t: str",
        "numbers: List[int], target: int",
        "words: List[str], k: int",
        "matrix: List[List[int]]",
        "x: float, y: float",
        "string: str, letter: str",
        "lst, n",
        "nums",
        "start: int, end: int",
        "d: dict",
    ),
    "result": ("int", "str", "bool", "List[int]", "List[str]", "float", "Tuple[int, int]", "List[float]"),
    "docstart": (
        "Given a",
        "Return the",
        "Check if",
        "Find the",
        "Write a function that",
        "You are given",
        "For a given",
        "Count",
        "Return a list",
        "Return True if",
        "Input to this function is",
        "This function takes",
        "From a list of",
        "Create a function which",
        "Compute",
        "Filter",
        "Calculate the",
        "Remove",
        "Convert",
    ),
}
LISTS = {name: tuple(" ".join(word.split()) for word in words) for name, words in LISTS.items()}

OPENINGS: tuple[str, ...] = tuple(
    """Who|Who was the first|Who wrote|Who invented|Who is the|When did|When was|When is|Where is
        |Where was|Where do|What is the|What does|What are|What was the name of|What year did
        |What kind of|Which|Which country|How many|How much|How long does|How far|How old|How do I
        |How can I|How does|Why do|Why is|Why did|Is it|Is there|Can you|Can I|Could you|Do you|Does
        |Should I|Would you|Are there|Explain|Describe|Summarize|Summarize the following|Write|Write a
        |Write an essay|Write a Python function|Write a short|Write code|Translate
        |Translate the following sentence|Rewrite|Rewrite this sentence|Give me|Give an example
        |Give three|Give a|List|List five|Name|Name three|Compare|Compare and contrast|Create|Create a
        |Generate|Generate a|Design|Suggest|Suggest a|Recommend|Find|Find the|Calculate|Solve
        |Solve the equation|Convert|Classify|Classify the following|Identify|Identify the|Edit|Correct
        |Correct the grammar|Fix|Complete|Complete the sentence|Tell me|Tell me about|Tell me a story
        |Imagine|Imagine you are|Pretend|Act as|You are|You are a|I am|I am feeling|I have|I want|I need
        |I need help|I'm trying to|I've been|My|My friend|Our company|Let's|Let|If|If a|If I|Suppose
        |Consider|Given|Given the following|In|In the|In what|Based on|Using|Use|For|The|The following|A
        |An|This|There are|Here is|Please|Please help me|Hello|Hi|Hey|Thanks|Help|Make|Make a|Take
        |Choose|Pick|Decide|Analyze|Analyze the|Evaluate|Discuss|Outline|Draft|Draft an email|Compose
        |Construct|Develop|Plan|Plan a|Prepare|Provide|Provide a|Propose|Predict|Determine|Estimate
        |Define|What's|What's the difference between|Who's|How's|Dear|Question:|Question: Who
        |Question: When|Question: Where|Q:|def|import|SELECT|```python|#|1.|"|(|At|On|After|Before
        |During|While|Once|One|Two|Three|John|Anna|Tom|Mary|Sam|Add|Remove|Sort|Rank|Group|Turn|Change
        |Replace|Paraphrase|Simplify|Shorten|Extend|Expand|Continue|Answer|Read|Read the following|Look
        |Think|Think of|Brainstorm|Come up with|Show|Show me|Teach|Prove|Derive|Implement|Debug|Optimize
        |Reply|Respond|Extract|Extract the|Count|Select|Match|Order|Arrange|Fill|Fill in|Highlight
        |Interpret|Justify|Argue|Critique|Review|Rate|Reflect|Research|Quote|Cite|Sketch|Invent|Form
        |Formulate|Rephrase|Reword|Spell|Pronounce""".split("|")
)
OPENINGS = tuple(" ".join(opening.split()) for opening in OPENINGS)

QUESTIONS: tuple[str, ...] = (
    "What is the capital of {place}?",
    "Who is the president of",
    "When did {place}",
    "Where is the",
    "Who wrote the book",
    "Who sang the song",
    "Who plays the",
    "Who won the",
    "When was the last time",
    "What is the meaning of the name",
    "How many people live in {place}?",
    "What is the largest",
    "Who discovered",
    "What happened in {year}",
    "What happened in {place} in {year}?",
    "When does the new season of",
    "Where does the name",
    "What is the main purpose of",
    "How many episodes",
    "Where was the movie",
    "Who was the king of",
    "What does the",
    "Which country has the most",
    "Why is {topic} important",
    "When did {topic} begin",
    "Who first studied {topic}",
    "Where can you find {topic}?",
    "What are the three main types of",
    "How long does it take to",
    "What is the difference between {topic} and",
    "In which year was",
    "What language is spoken in {place}?",
    "Who is the author of",
    "What is the name of the",
    "Question: {opening}",
    "Answer the question: who",
    "Answer this question in one sentence: what",
)

INSTRUCTIONS: tuple[str, ...] = (
    "Write a {form} about {topic}.",
    "Write a {tone} {form} about {topic} for {reader}.",
    "Explain {topic} to {reader}.",
    "Give {number} facts about {topic}.",
    "List {number} reasons why {topic}",
    "What are the pros and cons of {topic}?",
    "Compare {topic} and {topic}.",
    "Describe {topic} in one sentence.",
    "Summarize what is known about {topic}.",
    "Translate the following sentence into {language}:",
    "Rewrite the following sentence in a {tone} way:",
    "Classify the following items as",
    "Create a {form} that mentions {topic} and {topic}.",
    "Suggest a title for a {form} about",
    "Correct the mistakes in this sentence:",
    "Turn this into a question:",
    "Find the odd one out:",
    "Give me a plan for a weekend in {place}.",
    "How would you teach {topic} to {reader}?",
    "Make a table of",
    "Write a {form} from {person} to {person}",
    "I am writing a {form} about {topic}.",
    "Name {number} things you need for",
    "What would happen if there were no {topic}?",
    "Tell me a {tone} joke about {topic}.",
    "Write the first paragraph of a story set in {place}",
    "Which is better, {topic} or {topic}?",
    "Invent a {tone} name for",
    "Give an example of a metaphor about {topic}.",
    "{person} has {number} apples and",
    "A train leaves {place} at",
    "A shop sells {number}",
    "If {person} earns {number} dollars",
    "Edit this paragraph to make it more {tone}:",
    "Generate {number} questions about {topic}.",
    "Explain why {topic}",
    "Design a {form} for {reader}.",
    "Give a step by step guide to",
    "Imagine you are {person} in {year}.",
    "Write a Python",
    "Write a SQL query",
    "Write a JavaScript function",
    "Write a regular expression",
    "Write an HTML page about {topic}.",
)

TALKS: tuple[str, ...] = (
    "Compose a {tone} travel post about a trip to {place}",
    "Draft an email to {person} about",
    "Imagine you are writing a {form}",
    "Describe a vivid character",
    "Write a {tone} {form}",
    "Help me to understand {topic}",
    "Pretend to be {person}",
    "Act as a teacher of",
    "Which word does not belong",
    "Suppose that {person} is",
    "Solve: what is the",
    "How many whole numbers",
    "The vertices of a triangle",
    "Benjamin went",
    "Extract the following information from",
    "Evaluate the following reviews",
    "Given the following data",
    "Identify the countries",
    "In the field of",
    "Describe how {topic}",
    "What causes {topic}?",
    "Explain the difference between {topic} and {topic}",
    "Provide insights into",
    "Write a function to",
    "Implement a program that",
    "How did {topic} change the world?",
    "What are the main ideas of",
    "Could you tell me about {topic}?",
    "I feel {tone} today",
)

ARTICLES: tuple[str, ...] = (
    "{place}, {month} {day} -- A report on {event}",
    "By {person}\n\n{place} - It was on {weekday} that",
    "{event_title} in {place}\n\n{weekday}'s events began when",
    "{event_title}\n\nBy {person}, {month} {day}, {year}\n\n",
    "{person}, {number}, from {place},",
    "Police in {place} said on {weekday} that",
    "({place}) -- {person}",
    "The {tone} story of {person}\n\nChapter 1\n\n",
    "The history of {topic} in {place}\n\n",
    "A study published in {month}",
    "Minutes of the meeting, {month} {day}\n\nPresent: {person}, {person}, {person}\n\n",
    "{topic_title}: what you should know\n\n",
    "{person} was not supposed to",
    "Residents of {place} woke up on {weekday} to",
    "Scientists in {place} have",
    "Match report: {place} {number} - {place}\n\n",
    "The government of {place} announced on {weekday}",
    "Travel: {number} days in {place}\n\n",
)

ARTICLE_REQUESTS: tuple[str, ...] = (
    "Write a long news article about {event} in {place}. Include names, numbers and quotes.",
    "Write a detailed report about {topic} in {place} in {year}, in several paragraphs.",
    "Write a long newspaper story: {person} and {event}.",
    "Write the transcript of an interview with {person} about {topic}.",
    "Write a long encyclopedia article about {topic}.",
    "Tell the whole story of {event}, as told by {person} from {place}.",
)

SUMMARIES: tuple[str, ...] = (
    "Summarize: {text}",
    "Summarize the following article: {text}",
    "{text}\n\nTL;DR:",
    "{text}\n\nSummarize the above in one paragraph.",
    "Write the highlights of this article.\n\n{text}",
    "Summarise this text in two sentences:\n{text}",
    "{text}\n\nSummary:",
    "Summarize: {text} TL;DR:",
    "Give the key points of the following news story.\n\n{text}",
    "Article:\n{text}\n\nHighlights:",
    "What is this article about? {text}",
    "Please write a brief summary of the text below.\n\n{text}",
)

DOCUMENT_TASKS: tuple[str, ...] = (
    "{text}\n\nWho is mentioned in the text?",
    "{text}\n\nWhere and when did this happen?",
    "Write a title for this text:\n\n{text}",
    "Answer from the text: why did it happen?\n\n{text}",
    "List all names and places in this text.\n\n{text}",
    "Rewrite this text in simpler words:\n\n{text}",
    "{text}\n\nWhat happens next?",
    "{text}\n\nExtract all numbers and dates.",
    "Context: {text}\n\nQuestion: What is the main point?\nAnswer:",
    "Use this document to answer. {text}\n\nQuestion: Who",
    "{text}\n\nAsk three questions about this text and answer them.",
    "Translate the first paragraph into {language}:\n\n{text}",
    "{text}\n\nWhat is the author's opinion?",
    "Turn this text into bullet points:\n\n{text}",
)

CODE_REQUESTS: tuple[str, ...] = (
    "Complete the following python code:\n{code}",
    "{code}",
    "Complete this function:\n\n```python\n{code}```",
    "Implement the given code.\n{code}",
    "Finish the function below. Return only code.\n\n{code}",
    "Write the body of this Python function.\n{code}",
    "Please complete the code:\n```\n{code}\n```",
    "Read the docstring and write the function:\n\n{code}",
)
