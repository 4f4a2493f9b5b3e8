"""The page of the client-server study."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from client_server_cells import PROMPT, SEED, SHIPPED, TOKENS

from outrider.netsim.report.parts import COLUMNS as PARTS
from outrider.netsim.virtual.tables import COLUMNS as SWEPT
from outrider.netsim.virtual.tables import table


def page(told: dict[str, Any]) -> str:
    """The Markdown of the results."""
    facts, cells = told["machine"], told["cells"]
    links = list(dict.fromkeys(one["link"] for one in cells))
    lines = [
        "# Client and server over mobile links",
        "",
        f"Virtual time, {facts['answers']} answers a cell, {PROMPT} tokens of prompt, {TOKENS} of answer, seeds from "
        f"{SEED}. Passes: {told['cost']['dtype']} on one core of {facts['cpu']}. Commit {facts['commit']}. "
        "**Bold** is faster than plain streaming on the same link.",
        "",
        *SAYS,
        "",
        "![Tokens per second over links: every mode, and trees of every drafter](client_server.png)",
        "",
        "## Tokens per second",
        "",
        *pivot(cells, links, "tokens_per_s", "{:.1f}"),
        "",
        "## Pauses: 95th percentile of the time between moments at which tokens appeared, seconds",
        "",
        *pivot(cells, links, "gap_p95_s", "{:.2f}"),
        "",
        "## Longest pause, seconds",
        "",
        *pivot(cells, links, "longest_gap_s", "{:.1f}"),
        "",
        "## Target's time a token, milliseconds",
        "",
        *pivot(cells, links, "forward_ms_per_token", "{:.0f}"),
        "",
        f"## All figures of {SHIPPED} and of what needs no drafter",
        "",
        *table([one for one in cells if one["drafter"] in ("none", SHIPPED)], COLUMNS),
    ]
    if told.get("real"):
        lines += [
            "",
            "## Through the real proxy, beside virtual time",
            "",
            *table(flat(told["real"]), REAL_COLUMNS),
            "",
            f"One run, {told['real'][0]['real']['answers']} answers a cell.",
            "",
            *REAL_SAYS,
            "",
            "## Where a round goes, milliseconds: real, and matched in virtual time",
            "",
            *parts_table(told["real"]),
        ]
    return "\n".join(lines) + "\n"


SAYS = (
    "**What it says.** Synchronous edge drafting pays the round trip once a round, streaming once an answer, and "
    "a pass here takes 53 to 75 ms. So drafting wins where the round trip is short beside what a round brings "
    "(loopback, 5G standalone, with the best drafters also 5G non-standalone, satellite and, by the best alone and "
    "in trees, 4G in good coverage) and loses everywhere else, by up "
    "to half and more on bad 4G; trees lose later than chains. A unary call a token is never better than "
    "streaming. Run-ahead takes the better side of both within a few percent, with three exceptions, which are "
    "against us. On bad 4G (and with most drafters on the trace of a commuter train) it stays 5 to 8 % behind plain "
    "streaming: its first window asks for nothing before the link is known, every attempt to draft again costs a "
    "round trip, and state rows follow every streamed token (without them it is one percent better). By satellite "
    "it streams, where trees of the two best drafters bring 15 to 21 % more: every answer here begins inside one of "
    "the spikes that come every 15 s, so that the first round trip is measured at 90 to 130 ms where 35 are usual, "
    "and nothing measures it again while the verifier streams, until drafts are tried the next time. With one of "
    "these drafters it is 6 % behind trees on 5G non-standalone. Where drafts are used, the verifier spends about "
    "half the time a token.",
    "",
    "Outages, and lost packets that TCP repairs after 200 ms or more, make verdicts late, and the device writes "
    "on. Where outages are short the longest pauses are then shorter than streaming's, on the worst links they "
    "are not. Nearly all of that text is taken back (98 %): it stands up to the first wrong guess, and about one "
    "guess in two is wrong.",
    "",
    "**What it leaves out.** The device is a core of the same machine (a phone's drafter has another speed). "
    "There is no second round in flight, no slow start of TCP; drafts have the size that is best on average and "
    "do not grow with the drafter's confidence in the single text; rounds in which prompt lookup is silent count "
    "as wrong drafts; every position has its own luck, where real texts have easy and hard stretches.",
)
REAL_SAYS = (
    "*virtual*: predicted from what was recorded; *matched*: with the cell's own τ and, for chains and trees, the "
    "verifier's own time a verdict; for the others with passes as the verifier's cost curve had them when it started.",
    "",
    "Virtual time is an optimist. Most of its lead is the host: with nothing else running, one pass of one row takes "
    "45 or 85 ms of CPU time here, changing within seconds, and cost curves hold the fastest passes. What is left once "
    "that is matched, 12 to 14 % for chains and trees, is the device (twice what its step cost says: it was measured "
    "in a loop, and here waits between runs and shares memory with the verifier) and 5 to 25 ms a round of "
    "transport and scheduling. How fast the verifier was while it streamed is not known, since tokens that it decodes "
    "alone carry no times: the ratios of `stream` and `auto` have the host's speed in them. `auto` also streams where "
    "virtual time would draft, because it has learned of these delays; on 5G it was as fast as the better of both, on "
    "medium 4G 11 % slower than streaming.",
)
COLUMNS = (
    ("link", "link", "{}"),
    *(column for column in SWEPT if column[0] not in ("rtt_ms", "mbit", "verify_ms", "tau_asked")),
    ("provisional", "provisional", "{}"),
    ("revised", "revised", "{}"),
)
REAL_COLUMNS = (
    ("link", "link", "{}"),
    ("mode", "mode", "{}"),
    ("real_tokens_per_s", "tokens/s", "{:.2f}"),
    ("virtual_tokens_per_s", "virtual", "{:.2f}"),
    ("matched_tokens_per_s", "matched", "{:.2f}"),
    ("ratio", "real / matched", "{:.2f}"),
    ("real_tau", "τ", "{:.2f}"),
    ("virtual_tau", "virtual", "{:.2f}"),
    ("real_ttft_s", "first token s", "{:.2f}"),
    ("matched_ttft_s", "matched", "{:.2f}"),
    ("real_gap_p50_s", "gap p50 s", "{:.3f}"),
    ("matched_gap_p50_s", "matched", "{:.3f}"),
)


def flat(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Real cells with their virtual values in one row each."""
    rows = []
    for one in cells:
        row = {"link": one["link"], "mode": one["mode"]}
        for side in ("real", "virtual", "matched"):
            row |= {f"{side}_{name}": value for name, value in one[side].items()}
        row["ratio"] = one["real"]["tokens_per_s"] / one["matched"]["tokens_per_s"]
        rows.append(row)
    return rows


def parts_table(cells: Sequence[dict[str, Any]]) -> list[str]:
    """A row for each real cell that drafts, a column for each part of a round."""
    names = [name for name in PARTS if name != "rounds"]
    lines = [f"| link | mode | {' | '.join(names)} |", "| --- | --- |" + " ---: |" * len(names)]
    for one in cells:
        sides = [one[side].get("parts") for side in ("real", "matched")]
        if all(sides):
            told = (" / ".join(f"{side[name]:.0f}" for side in sides) for name in names)
            lines.append(f"| {one['link']} | {one['mode']} | {' | '.join(told)} |")
    return lines


def pivot(cells: Sequence[dict[str, Any]], links: Sequence[str], field: str, form: str) -> list[str]:
    """One figure: a row for each drafter and mode, a column for each link."""
    rows = list(dict.fromkeys((one["drafter"], one["mode"]) for one in cells))
    found = {(one["drafter"], one["mode"], one["link"]): one for one in cells}
    lines = [f"| drafter | mode | {' | '.join(links)} |", "| --- | --- |" + " ---: |" * len(links)]
    for drafter, mode in rows:
        words = []
        for link in links:
            one = found[drafter, mode, link]
            word = "–" if one[field] is None else form.format(one[field])
            words.append(f"**{word}**" if field == "tokens_per_s" and one["beats_streaming"] else word)
        lines.append(f"| {drafter} | {mode} | {' | '.join(words)} |")
    return lines
