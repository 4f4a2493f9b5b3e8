"""The sampling options of `outrider` and `outrider-cloud generate`, said once."""

from __future__ import annotations

from typing import Annotated

import typer

TopK = Annotated[int, typer.Option(help="Choose among this many tokens; 0 is off.")]
TopP = Annotated[float, typer.Option(help="Choose among the tokens that make up this probability; 0 is off.")]
MinP = Annotated[
    float, typer.Option(help="Only tokens this many times as likely as the likeliest; 0 is off.")
]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
Repetition = Annotated[
    float, typer.Option(help="Divides (multiplies, if negative) logits of tokens in the text; 1 is off.")
]
Presence = Annotated[float, typer.Option(help="Lowers tokens of the answer once, -2 to 2.")]
Frequency = Annotated[float, typer.Option(help="Lowers tokens of the answer for each time, -2 to 2.")]
Biases = Annotated[
    list[str] | None,
    typer.Option("--logit-bias", help="ID=VALUE, -100 to 100, added to a token. Repeatable."),
]
MinTokens = Annotated[
    int, typer.Option(min=0, help="No end before so many tokens, neither by token nor by --stop.")
]
Stop = Annotated[list[str] | None, typer.Option(help="End the answer before this text. Repeatable.")]
