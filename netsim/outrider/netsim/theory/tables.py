"""The report as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from outrider.netsim.theory.predict import Mean, Prediction
from outrider.netsim.theory.report import Report
from outrider.netsim.theory.simulate import Estimate


def markdown(report: Report) -> str:
    """All tables, one section a theorem."""
    parts = [_checks(report), _golden(report), _windows(report), _unbiased(report), _epsilon(report)]
    parts += [_texts(report), _chains(report)]
    if report.pair is not None:
        parts += [_pair(report.pair), _rules(report.pair)]
    return "\n\n".join(parts) + "\n"


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table below its title."""
    lines = [f"### {title}", "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _figure(value: float, digits: int = 5) -> str:
    """Fixed digits, and no minus in front of a rounded zero."""
    return f"{round(value, digits) + 0.0:.{digits}f}"


def _played(one: Estimate) -> str:
    return f"{one.mean:.4f} ± {one.error:.4f}"


def _measured(one: Mean) -> str:
    return f"{one.mean:.3f} ± {one.error:.3f}"


def _checks(report: Report) -> str:
    rows = [
        (check.law, f"{check.value:.2g}", f"{check.limit:g}", "yes" if check.holds else "**NO**")
        for check in report.checks
    ]
    return table("Laws", ("law", "value", "at most", "holds"), rows)


def _golden(report: Report) -> str:
    rows = []
    for batch, exact in report.theorem3.rejections.items():
        played = report.monte_carlo.get(batch)
        simulated = ("", "") if played is None else (_played(played), f"{played.z:+.2f}")
        rows.append((batch, _figure(exact), _figure(report.theorem3.improvement[batch]), *simulated))
    gone = report.theorem1.expected - report.theorem3.floor
    rows.append(("∞", _figure(report.theorem3.floor), _figure(gone), "", ""))
    return table(
        f"Theorems 1 and 3: golden chain, M drafts (simulated: {report.settings.runs} runs)",
        ("M", "E[rejections]", "saved", "simulated", "z"),
        rows,
    )


def _windows(report: Report) -> str:
    rows = [
        (
            str(row.exact.window),
            _figure(row.exact.rejections),
            _played(row.rejections),
            _figure(row.exact.rounds),
            _figure(row.exact.tokens_per_round, 4),
            _figure(row.without_bonus.rejections),
            _figure(row.without_bonus.rounds),
        )
        for row in report.theorem1.windows
    ]
    head = ("γ", "rejections", "simulated", "passes", "τ", "rejections, no bonus", "passes, no bonus")
    return table("Finite windows, golden chain", head, rows)


def _unbiased(report: Report) -> str:
    rows = [(share, _figure(value)) for share, value in report.theorem2.members.items()]
    return table(
        "Theorem 2: unbiased members b = c·min(1, target/draft), golden chain", ("c", "E[rejections]"), rows
    )


def _epsilon(report: Report) -> str:
    rows = [
        (
            f"{row.epsilon:g}",
            _figure(row.rejection, 4),
            _figure(row.opt_loss, 4),
            "" if row.lp_loss is None else _figure(row.lp_loss, 4),
            _figure(row.uno_loss, 4),
        )
        for row in report.overacceptance.g2
    ]
    return table(
        "Theorems 4 and 5: ε-rule on G2 (TV 0.5)", ("ε", "reject", "OPT loss", "by LP", "UNO loss"), rows
    )


def _texts(report: Report) -> str:
    rows = [
        (
            f"{row.epsilon:g}",
            _figure(row.opt.rejections, 4),
            _figure(row.opt.loss, 4),
            _figure(row.opt.distance, 4),
            _figure(row.uno.gap, 4),
            _figure(row.small_opt.rejections, 4),
            _figure(row.text_distance, 4),
            _figure(row.small_opt.loss, 4),
        )
        for row in report.sequence
    ]
    head = (
        "ε",
        "rejections",
        "loss",
        "TV",
        "UNO: gap",
        "small: rejections",
        "distance of texts",
        "its bound",
    )
    return table("Whole texts: golden chain; and a small process, 3 tokens, 5 positions", head, rows)


def _chains(report: Report) -> str:
    rows = [
        (
            f"{row.states}, {row.horizon}, {row.concentration:g}",
            _figure(row.theorem1, 4),
            f"{row.standard.z:+.2f}",
            _figure(row.batch4.exact, 4),
            f"{row.batch4.z:+.2f}",
            f"{row.opt_gap.z:+.2f}",
        )
        for row in report.random_chains
    ]
    head = ("states, tokens, concentration", "Theorem 1", "z", "M = 4", "z", "z of OPT's gap, ε = 0.1")
    return table("Random chains", head, rows)


def _pair(pair: Prediction) -> str:
    rows = [("Theorem 1", _measured(pair.theorem1), "", "")]
    rows += [(f"M = {batch}", _measured(value), "", "") for batch, value in pair.batches.items()]
    rows += [
        (
            f"γ = {window}, bonus",
            _measured(one.rejections),
            _measured(one.rounds),
            f"{one.tokens_per_round:.3f}",
        )
        for window, one in pair.windows.items()
    ]
    title = (
        f"Measured pair: {pair.target} and {pair.draft}, {pair.prompts} prompts, {pair.texts} texts, "
        f"{pair.tokens} tokens, mean TV {pair.rejected_share:.4f}"
    )
    return table(title, ("", "rejections a text", "passes a text", "τ"), rows)


def _rules(pair: Prediction) -> str:
    rows = [
        (
            f"{paid.rule.replace}, ε {paid.rule.epsilon:g}",
            str(paid.texts),
            _measured(paid.rejected),
            f"{paid.surprise.z():+.2f}",
            _measured(paid.loss),
            _measured(paid.distance),
            _measured(paid.gap),
        )
        for paid in pair.rules
    ]
    head = ("rule", "texts", "rejected", "z against expected", "loss", "TV", "rejected + loss - TV")
    return table("What its real runs paid, per text", head, rows)
