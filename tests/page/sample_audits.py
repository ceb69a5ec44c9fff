"""Audits made by hand, as a page shows them: one version with the one before it, the same with a
link in each state, an audit of many versions, and one upwards from a conversation.

A real version has nine stages with some 35 outputs, and its code is one link per stage.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from rft.needs import NEEDS
from rft.reports.audit import Audit, Kind, Link, Node, State

FILES = {
    "traffic": ("report.json", "conversations.parquet", "reference.json", "current.json"),
    "drift": ("report.json", "validations"),
    "examples": ("report.json", "train.jsonl", "validation.jsonl", "test.jsonl", "profile.json", "leakage.json"),
    "policy": ("report.json", "model"),
    "baseline": ("report.json", "rollouts", "timing.json", "samples.jsonl"),
    "prompt": ("report.json", "prompt.json", "candidates", "rollouts"),
    "train": ("report.json", "adapter", "metrics.jsonl", "rollouts", "timing.json"),
    "challenger": ("report.json", "rollouts", "timing.json", "shown.json", "arms", "smoke.json"),
    "gate": ("report.json", "request.json", "timing.json"),
}
READS = {
    "drift": ("traffic",),
    "examples": ("traffic", "drift"),
    "policy": (),
    "baseline": ("policy", "examples"),
    "prompt": ("policy", "baseline", "examples"),
    "train": ("policy", "baseline", "prompt", "examples"),
    "challenger": ("policy", "prompt", "train", "examples"),
    "gate": ("drift", "baseline", "challenger"),
    "traffic": (),
}
assert [*FILES] == [*NEEDS]
STATES: tuple[State, ...] = ("altered", "missing", "doubtful", "erased", "not verifiable")


def sha(text: str, length: int = 64) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]


@dataclass
class Book:
    nodes: list[Node] = field(default_factory=list[Node])
    links: list[Link] = field(default_factory=list[Link])

    def node(self, kind: Kind, place: str, shown: str | None = None, **about: str) -> str:
        id_ = f"{kind}:{place}"
        if all(node.id != id_ for node in self.nodes):
            self.nodes.append(
                Node(id=id_, kind=kind, name=shown or place, about={k.replace("_", " "): v for k, v in about.items()})
            )
        return id_

    def link(self, source: str, says: str, target: str, why: str = "", state: State = "verified") -> None:
        self.links.append(Link(source=source, target=target, says=says, state=state, why=why or "the hashes are equal"))

    def audit(self, question: str, root: str | None, *answer: str) -> Audit:
        return Audit(
            question=question,
            answer=list(answer),
            ledger=f"entry 42, SHA-256 {sha('ledger')}",
            root=root,
            nodes=self.nodes,
            links=self.links,
        )

    def changed(self, number: int, state: State, why: str) -> None:
        self.links[number] = self.links[number].model_copy(update={"state": state, "why": why})

    def find(self, source: str, target: str) -> int:
        return next(place for place, link in enumerate(self.links) if (link.source, link.target) == (source, target))


def version(book: Book, number: int, *, whole: bool = True) -> str:
    """Version `number` of a model, and its run; `whole`: with its stages and files."""
    run = f"202611{number % 28 + 1:02d}-2339-{sha(str(number), 4)}"
    top = book.node("version", str(number), f"icd10 version {number}", prompt_SHA_256=sha(f"p{number}"))
    entry = book.node("entry", str(7 * number), f"{7 * number}, promotion", SHA_256=sha(f"e{number}"))
    book.link(top, "was promoted by", entry, f"the entry's SHA-256 {sha(f'e{number}')} was recomputed")
    request = book.node("entry", str(7 * number - 2), f"{7 * number - 2}, request", SHA_256=sha(f"r{number}"))
    if whole:
        people(book, entry, number)
    book.link(entry, "answers", request)
    at = book.node("run", run, None, state="promote", began="from the champion", dirty="no")
    book.link(request, "proposes the outcome of", at, "the decision's digest is the one in the request")
    revision = book.node("revision", f"v{number}", sha(f"v{number}", 40), tree=sha(f"t{number}", 40))
    book.link(at, "is recorded as", revision, f"commit {sha(f'v{number}', 40)} and 212 files were hashed again")
    if whole:
        ladder(book, revision, number)
    return top


def people(book: Book, entry: str, number: int) -> None:
    approval = book.node("entry", str(7 * number - 1), f"{7 * number - 1}, approval", reason="better on rare codes")
    book.link(entry, "rests on", approval)
    person = book.node("person", "ana", "ana@example.org", key=f"SHA256:{sha('ana', 43)}", roles="approver")
    book.link(approval, "was signed by", person, f"the signature is of key SHA256:{sha('ana', 43)}, an approver's")
    machine = book.node("machine", "m1", "clone of the team", key=f"SHA256:{sha('machine', 43)}")
    for one in (entry, approval):
        book.link(one, "was written by", machine, "the commit's signature fits")
    ledger = book.node("ledger", "ledger", "ledger of icd10", entries="42", head=sha("ledger"))
    book.link(approval, "is in", ledger, "the chain of 42 entries was hashed again")


def ladder(book: Book, revision: str, number: int) -> None:
    stages = {
        name: book.node("stage", f"{name}@{number}", name, command=f"exec python -m rft {name}")
        for name in [*FILES][::-1]
    }
    for name, stage in stages.items():
        book.link(revision, "names in dvc.lock", stage, "dvc.lock was parsed and agrees with dvc.yaml")
        for file in FILES[name]:
            path = f"data/{name}/{file}"
            out = book.node("bytes", f"{path}@{number}", path, MD5=sha(path + str(number), 32), size="12,345 bytes")
            book.link(stage, "wrote", out, f"MD5 {sha(path + str(number), 32)} recomputed")
    for name, stage in stages.items():
        for other in READS[name]:
            book.link(stage, "read", f"bytes:data/{other}/{FILES[other][-1]}@{number}", "the same MD5 on both sides")
    made_with(book, stages, number)


def made_with(book: Book, stages: dict[str, str], number: int) -> None:
    code = book.node("code", sha(f"c{number}", 40), None, branch="main", uncommitted_edits="none")
    parameters = book.node("parameters", f"params@{number}", "params.yaml", seed="7", steps="200")
    environment = book.node("environment", f"env@{number}", "112 packages", Python="3.11.9", agent_rft="0.14.0")
    recipe = book.node("recipe", "icd10", "recipes/icd10", grader=sha("grader"), recipe=sha("recipe"))
    tools = book.node("tools", "t", "https://tools.example.org", declared_version="2026-11")
    base = book.node("base model", "b", "Qwen/Qwen3-4B", revision="main")
    for stage in stages.values():
        book.link(stage, "ran the code of", code, "152 modules have the Git objects that dvc.lock names")
        book.link(stage, "had the settings of", parameters)
        book.link(stage, "ran in", environment)
    for name in ("policy", "baseline", "train"):
        book.link(stages[name], "was set by", recipe, "the folder's MD5 was computed from Git's tree")
    book.link(stages["baseline"], "called", tools, "an external server declares its version", "not verifiable")
    book.link(stages["policy"], "began with", base, "a hub model's revision is not pinned", "not verifiable")
    window = book.node("window", f"w{number}", f"week {number % 52 + 1} of 2026", SHA_256=sha(f"w{number}"))
    book.link(stages["traffic"], "took", window, f"SHA-256 {sha(f'w{number}')} recomputed")
    talks = book.node("conversations", f"w{number}", "2,400 conversations", from_="2026-11-02", to="2026-11-09")
    book.link(window, "holds", talks, "all 2,400 ids were counted in the file")


def verified(num_before: int = 5) -> Audit:
    """What is served, down to its conversations, with the champions before it."""
    book = Book()
    alias = book.node("alias", "mlflow", "icd10@champion", where="MLflow")
    file = book.node("alias", "file", "champion.json", where="the champion's file")
    top = version(book, 6)
    for one in (alias, file):
        book.link(one, "names", top, "the alias names version 6, as the ledger does")
    before = "run:20261107-2339-" + sha("6", 4)
    for number in range(5, 5 - num_before, -1):
        older = version(book, number, whole=False)
        book.link(before, "began from", older, "the champion's file in the revision names it")
        before = f"run:202611{number % 28 + 1:02d}-2339-{sha(str(number), 4)}"
    return book.audit("what icd10's champion 6 rests on", top)


def each_state() -> Audit:
    """The same, with a link in each of the states."""
    found = verified()
    book = Book(list(found.nodes), list(found.links))
    adapter = "data/train/adapter"
    book.changed(
        book.find("stage:train@6", f"bytes:{adapter}@6"),
        "altered",
        f"{adapter}/adapter_model.safetensors was changed: it has MD5 {sha('x', 32)}, and dvc.lock names "
        f"{sha(adapter + '6', 32)}. Delete it from the cache, and ask again",
    )
    book.changed(
        book.find("stage:challenger@6", "bytes:data/challenger/rollouts@6"),
        "erased",
        "`rft runs gc` removed its bytes on 2026-11-12, and no DVC remote is set, so they cannot be fetched",
    )
    book.changed(
        book.find("revision:v6", "stage:prompt@6"),
        "missing",
        "data/prompt is not in this clone's DVC cache, and the DVC remote storage lacks it",
    )
    book.changed(
        book.find("entry:41", "person:ana"),
        "doubtful",
        "the key of ana@example.org is marked as compromised since entry 39. Ask her to sign again",
    )
    book.changed(
        book.find("alias:mlflow", "version:6"),
        "altered",
        "the alias was moved by hand: it names version 4, and the ledger version 6. Put it right: rft reconcile",
    )
    return book.audit("what icd10's champion 6 rests on", found.root)


def everything(num_versions: int = 50, broken: int | None = 31) -> Audit:
    """All versions of a model, newest first, each with its run and files."""
    book = Book()
    alias = book.node("alias", "mlflow", "icd10@champion", where="MLflow")
    for number in range(num_versions, 0, -1):
        top = version(book, number)
        if number == num_versions:
            book.link(alias, "names", top)
        else:
            later = number + 1
            run = f"run:202611{later % 28 + 1:02d}-2339-{sha(str(later), 4)}"
            book.link(run, "began from", top, "the champion's file in the revision names it")
    if broken:
        path = "data/examples/test.jsonl"
        why = f"{path} was changed: it has MD5 {sha('y', 32)}. Delete it from the cache, and ask again"
        book.changed(book.find(f"stage:examples@{broken}", f"bytes:{path}@{broken}"), "altered", why)
    return book.audit("what every version of icd10 rests on", None)


def upwards(numbers: Sequence[int] = (6, 5)) -> Audit:
    """From a conversation to the versions that depend on it."""
    book = Book()
    root = "conversation:c-1"
    for number in numbers:
        version(book, number, whole=False)
        stage = book.node("stage", f"traffic@{number}", "traffic")
        book.link(f"revision:v{number}", "names in dvc.lock", stage)
        window = book.node("window", f"w{number}", f"week {number} of 2026", SHA_256=sha(f"w{number}"))
        book.link(stage, "took", window)
    book.node("conversation", "c-1", "conversation 8f3a-77", outcome="graded 0.5")
    for number in numbers:
        book.link(f"window:w{number}", "holds", root, "the id is in line 812 of the file")
    answer = ("Versions 6 and 5 of icd10 were trained on it.", f"Its window is in run 20261107-2339-{sha('6', 4)}.")
    return book.audit("what depends on conversation 8f3a-77", root, *answer)
