"""A model card as Hugging Face reads it: README.md with YAML before it.

The YAML holds what the hub can show and search: the base model, data sets, and results with their
values. `huggingface_hub` writes it, and reads it back in the tests. The text holds what people need
to judge the version. The YAML has no field for intervals, so they are in a metric's name. Names of
data sets are ours, not the hub's: nothing is uploaded, and the hashes say which bytes are meant.
"""

from __future__ import annotations

from collections.abc import Iterator

from rft.formatting import counted
from rft.reports import wording
from rft.types import Metric
from tasks.ledger.facts import BEGINNING
from tasks.provenance.limits import limits
from tasks.provenance.subject import Subject, prompt_sha256

_SHOWN = ("reward/mean", "score/mean", "solved/share", "tool_calls/mean", "tool_calls/p95", "tokens/mean")
_TAGS = ("agent-rft", "tool-use")


def card(subject: Subject) -> str:
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    trained = subject.train is not None and subject.train.trained
    kind = subject.weights.kind if subject.weights else ""
    results = [
        EvalResult(
            task_type="text-generation",
            task_name=f"recipe {subject.recipe}",
            dataset_type=f"{subject.model}-{subject.measured_on}",
            dataset_name=f"{subject.model}, {subject.measured_on} examples",
            dataset_split=subject.measured_on,
            dataset_revision=subject.measured.examples_sha256 if subject.measured else None,
            metric_type=name,
            metric_name=f"{name}{_interval(metric)}",
            metric_value=round(metric.value, 6),
        )
        for name, metric in _metrics(subject)
    ]
    data = ModelCardData(
        model_name=subject.name,
        base_model=subject.base_name,
        datasets=[f"{subject.model}-{split}" for split in (subject.examples.counts if subject.examples else {})],
        metrics=[name for name, _ in _metrics(subject)],
        eval_results=results or None,
        library_name={"lora": "peft", "full": "transformers"}.get(kind),
        pipeline_tag="text-generation",
        tags=[*_TAGS, *(["reinforcement-fine-tuning"] if trained else []), *([kind] if kind else [])],
    )
    text = "\n".join(line for section in _sections(subject) for line in (*section, ""))
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n{text}"))


def _metrics(subject: Subject) -> list[tuple[str, Metric]]:
    found = subject.measured.metrics if subject.measured else {}
    return [(name, found[name]) for name in _SHOWN if name in found]


def _interval(metric: Metric) -> str:
    return "" if metric.low is None or metric.high is None else f" [{metric.low:.3f}, {metric.high:.3f}]"


def _sections(subject: Subject) -> Iterator[list[str]]:
    yield [f"# {_plain(subject.name)}", "", *_what(subject)]
    yield ["## How it was trained", "", *_items(_trained(subject))]
    yield ["## How it was judged", "", *_judged(subject)]
    yield ["## Who approved it", "", *_items(_approved(subject))]
    yield ["## Limits", "", *_items(limits(subject))]
    yield ["## Lineage", "", *_lineage(subject)]
    yield ["## How to verify it", "", *_verify(subject)]


def _what(subject: Subject) -> Iterator[str]:
    if subject.weights is None:
        made = f"the base model {subject.base_name} with a prompt, and no weights of its own"
    else:
        kind = "a LoRA adapter on" if subject.weights.kind == "lora" else "a full set of weights, trained from"
        made = f"{kind} {subject.base_name}, with a prompt"
    yield f"A tool-using agent for the task of recipe `{subject.recipe}`: {made}."
    if subject.weights is not None and not subject.weights.is_new:
        yield f"The weights are those of champion {subject.before}, which it replaced: only the prompt is new."
    if subject.prompt is not None:
        yield ""
        yield f"Prompt `{subject.prompt.name}`, with its hash below. It is part of the agent."


def _trained(subject: Subject) -> Iterator[str]:
    train = subject.train
    if train is None:
        kept = f"those of champion {subject.before}" if subject.weights else "the base model's"
        yield f"This run did not train it: its weights are {kept}."
    else:
        yield f"{train.reason[:1].upper()}{train.reason[1:]}."
        if train.trained:
            left_out = ", ".join(f"{number} {reason}" for reason, number in train.left_out.items())
            yield f"{train.rollouts} rollouts in groups of {train.group_size}" + (
                f"; left out: {left_out}." if left_out else "."
            )
    base = f"Base model: {subject.base_name} ({subject.base.kind}), {subject.base.num_parameters:,} parameters"
    if subject.base.demonstrations:
        base += f", warm-started on {counted(subject.base.demonstrations, 'demonstration')}"
    if subject.base.base:
        base += f" from {subject.base.base} (SHA-256 {subject.base.base_sha256})"
    yield f"{base}."
    if subject.examples is not None and train is not None:
        counts = ", ".join(f"{number} {split}" for split, number in subject.examples.counts.items())
        yield f"Examples: {counts}; source: the {subject.examples.source}."
    if (window := subject.traffic) is not None:
        talks = counted(window.num_conversations, "logged conversation")
        yield f"Traffic: {talks} from {window.first} to {window.last}."


def _judged(subject: Subject) -> Iterator[str]:
    if subject.decision is not None:
        yield f"The gate decided **{subject.decision.decision}**: {_plain(subject.decision.reason)}."
        yield ""
    if (look := subject.look) is not None:
        policy = "the policy's" if look.by_policy else "other than the policy's"
        yield (
            f"Its thresholds ({policy}) and the test set were registered in entry {look.number} of the ledger on "
            f"{look.time}, before the test set was opened. It was look {look.act.look} at these examples."
        )
        yield ""
    if subject.measured is not None:
        yield f"On the {subject.measured_on} examples, with 95 % intervals:"
        yield ""
        yield "| metric | value | low | high | n |"
        yield "|---|---|---|---|---|"
        for name, metric in _metrics(subject):
            low, high = ("" if end is None else f"{end:.3f}" for end in (metric.low, metric.high))
            yield f"| {name} | {metric.value:.3f} | {low} | {high} | {metric.n} |"
    if subject.decision is not None:
        yield ""
        yield "Against the champion before it, check by check:"
        yield ""
        yield from _items(wording.describe(check) for check in subject.decision.checks)


def _approved(subject: Subject) -> Iterator[str]:
    for signed in subject.approvals:
        yield f"{signed.person} on {signed.time}, entry {signed.entry}: {signed.reason}"
    for signed in subject.overrides:
        yield f"{signed.person} on {signed.time}, entry {signed.entry}, for uncommitted code: {signed.reason}"
    if subject.number == BEGINNING:
        yield "Nobody had to: it was served before the first promotion."
    if subject.started_by:
        yield f"Its run was started by {subject.started_by}."


def _lineage(subject: Subject) -> Iterator[str]:
    yield "| what | which |"
    yield "|---|---|"
    for what, which in _hashes(subject):
        yield f"| {what} | `{which}` |"
    yield ""
    yield f"{counted(len(subject.packages), 'package')}, {subject.packages_from}: all are in `bom.cdx.json`."


def _hashes(subject: Subject) -> Iterator[tuple[str, str]]:
    for name, number in subject.entries.items():
        yield f"{name}, entry {number}", subject.ids.get(number, "")
    yield "run", subject.run
    yield "revision (Git)", subject.revision
    yield "code commit (Git)", subject.code
    if subject.edits_sha256 is not None:
        yield "uncommitted edits (SHA-256)", subject.edits_sha256
    if subject.lock_sha256 is not None:
        yield "dvc.lock (SHA-256)", subject.lock_sha256
    yield f"base model {subject.base_name} (SHA-256)", subject.base.sha256
    if subject.weights is not None:
        yield "weights, the folder (SHA-256)", subject.weights.sha256
        for file in subject.weights.files:
            yield f"{file.path} (SHA-256)", file.sha256
    if subject.prompt is not None:
        yield "prompt (SHA-256)", prompt_sha256(subject.prompt)
    if subject.grader_sha256 is not None:
        yield f"recipe and grader {subject.recipe} (SHA-256)", subject.grader_sha256
    if subject.traffic is not None:
        yield "window of traffic (SHA-256)", subject.traffic.sha256
    for split, sha256 in (subject.examples.sha256 if subject.examples else {}).items():
        yield f"{split} examples (SHA-256)", sha256


def _verify(subject: Subject) -> Iterator[str]:
    yield "In a clone that has fetched the ledger:"
    yield ""
    yield "```"
    yield f"rft audit {subject.number}"
    yield "```"
    yield ""
    yield (
        "It recomputes every hash above and every signature, from what is served down to the conversations, and names "
        "the link that does not fit. This card is a copy of facts; by itself it is not evidence."
    )


def _items(lines: Iterator[str] | list[str]) -> Iterator[str]:
    yield from (f"- {_plain(line)}" for line in lines)


def _plain(text: str) -> str:
    """Put a text on one line, without what Markdown would take for a tag or the end of a cell."""
    return " ".join(text.split()).replace("<", "&lt;").replace("|", "\\|")
