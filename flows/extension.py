"""A second look at the candidates of an inconclusive run, on more test examples.

An inconclusive run leaves a candidate that may well be better, and too few examples to show it.
Training again would cost hours and give another candidate. So the run is repeated with one change,
`examples.blocks`: the test set is the examples that were seen, and fresh blocks. Nothing before the
test set depends on that key (rft/needs.py). So DVC's run cache gives back what each stage made, and
only the arms are measured.

It is a look like any other: it is registered, and costs its share of gate.alpha. The test set
inherits the highest number of looks among its examples, so this is the next look of the same
history (tasks/promotion/registration.py). The candidates must be the same. If the cache lost them
and they came out differently, the run stops before the test set is opened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flows import settings
from rft import commands, config, reports, stage_files
from rft.errors import InfrastructureError, UserError
from rft.formatting import counted
from tasks.ledger import book
from tasks.promotion import champions, registration
from tasks.runs import champion, records
from tasks.runs.artifacts import Revision
from tasks.runs.clone import Clone
from tasks.runs.records import RunRecord
from tasks.runs.run import Run


@dataclass(frozen=True)
class Extension:
    extended: RunRecord
    at: Revision
    params: config.Params
    """The settings of the new run."""
    blocks: int
    """How many blocks are added."""

    @property
    def description(self) -> str:
        """Say what will be looked at."""
        section = self.params.examples
        before = section.model_copy(update={"blocks": section.blocks - self.blocks})
        more = f"{counted(self.blocks, 'block')} of {section.test:,}"
        return (
            f"Run {self.extended.name} saw {counted(before.num_test, 'test example')}; {more} more are joined to them."
        )

    def assert_same(self, run: Run) -> None:
        """Raise InfrastructureError when this run has another prompt or other weights to judge."""
        other = [
            kind.__name__.removesuffix("Report").lower()
            for kind in (reports.PromptReport, reports.TrainReport)
            if _candidate(reports.read(kind, run.tree / stage_files.path(kind))) != _candidate(self.at.report(kind))
        ]
        if other:
            again = [stage for stage in other if run.record.stages.get(stage) == "ran"]
            why = f" Stage {again[0]} ran again: DVC's cache had lost what it made." if again else ""
            blocks = f"examples.blocks={self.params.examples.blocks}"
            raise InfrastructureError(
                f"run {run.name} came to another {' and '.join(other)} result than run {self.extended.name}, which it "
                f"extends.{why} The test set stays closed, and no look is spent. To judge what came out now, start a "
                f"run of its own: {commands.command('run', settings=[*self.extended.settings, '--set', blocks])}"
            )


def _candidate(report: reports.PromptReport | reports.TrainReport | None) -> object:
    if isinstance(report, reports.PromptReport):
        return report.found, report.winner.digest()
    return report and (report.trained, report.sha256)


def from_run(
    clone: Clone, name: str, blocks: int | None = None, report_line: Callable[[str], None] = print
) -> Extension:
    """Plan the extension of a run by some blocks, or by as many as would probably settle it. Raises
    UserError for a run that cannot be extended."""
    record = records.find(clone, name)
    if record.decision != "inconclusive" or record.revision is None:
        ended = record.decision or record.state
        raise UserError(f"run {record.name} ended as {ended}, and more examples help only an inconclusive run.")
    if record.bytes_removed:
        raise UserError(
            f"`rft runs gc` removed what run {record.name} had made, so it cannot be looked at again. Start a new run: "
            f"{record.again}"
        )
    at = Revision(clone, record.revision)
    before = settings.of_run(clone, record)
    _assert_offers_blocks(at, record, before)
    _assert_same_champion(clone, record, before, report_line)
    decision = at.report(reports.Decision)
    if blocks is None:
        wanted = decision.more_examples if decision else None
        blocks = -(-wanted // before.examples.test) if wanted else 1
    params = settings.of_run(clone, record, [f"examples.blocks={before.examples.blocks + blocks}"])
    look = book.read(clone, report_line=report_line).state.looks.get(registration.entry_number(at, record.name))
    registration.assert_looks_left(1 + (look.act.look if look else 0), before, offers_blocks=True)
    return Extension(record, at, params.model_copy(update={"run": _now(clone, record).run}), blocks)


def _assert_offers_blocks(at: Revision, record: RunRecord, params: config.Params) -> None:
    report = at.report(reports.ExamplesReport)
    if report is None or not report.offers_blocks:
        raise UserError(
            f"run {record.name}: {params.recipe.path}/examples.py offered no blocks of test examples. Give `examples` "
            "a parameter `block: int = 0`, whose test examples differ with it, or raise examples.test; then start a "
            f"new run: {record.again}"
        )


def _assert_same_champion(
    clone: Clone, record: RunRecord, params: config.Params, report_line: Callable[[str], None]
) -> None:
    now = champions.of_params(clone, params, report_line).champion.version
    then = champion.number(record.champion_version)
    if champion.number(now) != then:
        raise UserError(
            f"run {record.name} was judged against {champion.describe(then)}, and {champion.describe(now)} is served "
            f"now. More examples would compare it with the former champion. Start a new run: {record.again}"
        )


def _now(clone: Clone, record: RunRecord) -> config.Params:
    """Read the settings that the run was started with, as they are today. Section `run` (how long
    to work, whom to tell) is taken from them, because no run's record holds it."""
    pairs = [*zip(record.settings[::2], record.settings[1::2], strict=True)]
    file = next((value for option, value in pairs if option == "--params"), None)
    kept = commands.remembered()
    found = settings.resolve(clone, file, [value for option, value in pairs if option == "--set"])
    commands.remember(settings=kept)
    return found
