"""The result of a chain of entries: requests and their approvals, champions, rejections.

`replay` in verify.py applies the entries one by one. `apply` assumes that each was found valid.
Everything here depends only on the entries, in the order of the chain.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.ledger.entry import (
    Approval,
    DvcFile,
    Entry,
    Erasure,
    Genesis,
    Lift,
    Opened,
    Override,
    PolicyChange,
    Promotion,
    Registration,
    Rejection,
    Request,
    Rollback,
)
from tasks.ledger.facts import BEGINNING, Champion, Look, Move, RequestState, SignedEntry, VerifiedStatement, what_of
from tasks.ledger.key_compromise import Grounds, KeyCompromise
from tasks.ledger.policy import Change, EnrolMachine, Policy, SetThresholds, changed, signers


@dataclass
class State:
    genesis: str = ""
    """The id of the last genesis."""
    geneses: set[str] = field(default_factory=set[str])
    """The ids of all geneses: more than one after a restart."""
    restarts: str | None = None
    """The entry before the last genesis, if the ledger was restarted."""
    since: int = 1
    """The number of the last genesis. The people and machines of earlier entries have no rights any
    more."""
    number: int = 0
    head: str = ""
    """The id of the last entry."""
    time: str = ""
    policy: Policy = field(default_factory=Policy)
    policy_yaml: bytes = b""
    signers: bytes = b""
    looks: dict[int, Look] = field(default_factory=dict[int, Look])
    """Registration -> the look that it announced."""
    opened: dict[int, Opened] = field(default_factory=dict[int, Opened])
    erased: dict[int, Look] = field(default_factory=dict[int, Look])
    """Erasure -> the look whose list of examples is gone."""
    requests: dict[int, RequestState] = field(default_factory=dict[int, RequestState])
    promotions: dict[int, Champion] = field(default_factory=dict[int, Champion])
    moves: dict[str, list[Move]] = field(default_factory=dict[str, list[Move]])
    """Model -> its promotions and rollbacks, oldest first."""
    rejected: dict[tuple[str, str, str], SignedEntry] = field(default_factory=dict[tuple[str, str, str], SignedEntry])
    """(model, prompt, weights) -> the rejection that holds."""
    rejections: dict[int, tuple[str, str, str]] = field(default_factory=dict[int, tuple[str, str, str]])
    rejected_runs: dict[int, str] = field(default_factory=dict[int, str])
    """Rejection -> the run that it was about."""
    ids: dict[int, str] = field(default_factory=dict[int, str])
    """Entry -> its id."""
    statements: dict[str, int] = field(default_factory=dict[str, int])
    """Statement -> its entry. A statement counts once."""
    grounds: Grounds = field(default_factory=Grounds)
    """What each entry rests on."""
    had_owner: bool = False

    # -- what it says --------------------------------------------------------------------------
    def champion(self, model: str) -> int:
        """Return the entry of the promotion that is served now; 0 is the beginning."""
        return self.moves[model][-1].champion if self.moves.get(model) else BEGINNING

    def request(self, run: str) -> RequestState | None:
        """Return the latest request of a run."""
        return next((each for each in reversed(self.requests.values()) if each.act.run == run), None)

    def previous(self, model: str) -> int | None:
        """Return the champion to which a rollback returns. None: the beginning is served."""
        now = self.champion(model)
        return None if now == BEGINNING else self.promotions[now].before

    def registered(self, act: Registration) -> Look | None:
        """Return an earlier registration of the same look under the same terms. Those of an earlier
        version are left out: they do not say what they may spend."""
        same = (look for look in self.looks.values() if look.what == what_of(act) and look.act.level is not None)
        return next((look for look in same if _terms(look.act) == _terms(act)), None)

    def opening_of(self, test_sha256: str) -> int:
        """Return the first entry that opened this test set; 0: it is closed."""
        return next((n for n, act in self.opened.items() if act.test_sha256 == test_sha256), 0)

    def erasure_of(self, test_sha256: str, examples: DvcFile) -> int:
        """Return the entry that erased the list of this test set, or of the same examples; 0: none
        did."""
        gone = ((n, look.act) for n, look in self.erased.items())
        same = (n for n, act in gone if act.test_sha256 == test_sha256 or act.examples.sha256 == examples.sha256)
        return next(same, 0)

    def rejection_of(self, request: Request) -> SignedEntry | None:
        return self.rejected.get((request.model, *request.content.pair))

    def withdrawn(self, champion: int) -> Move | None:
        """Return the rollback away from this promotion, if nothing has returned to it since."""
        moves = self.moves.get(self.promotions[champion].model, [])
        places = [place for place, move in enumerate(moves) if move.champion == champion]
        after = moves[places[-1] + 1] if places[-1] + 1 < len(moves) else None
        is_rollback = after is not None and after.number not in self.promotions
        return after if is_rollback else None

    def requested(self, champion: int) -> Request | None:
        """Return the request that a champion's promotion granted. None: the beginning."""
        made = self.promotions.get(champion)
        return self.requests[made.request].act if made is not None else None

    def doubtful(self) -> dict[int, KeyCompromise]:
        """Return entry -> why it is doubtful (see key_compromise.py)."""
        return self.grounds.doubtful(self.policy.compromised)

    # -- one entry more ------------------------------------------------------------------------
    def apply(self, entry: Entry, verified_statement: VerifiedStatement | None, machine: str) -> None:
        """Apply an entry that `authorise` has allowed."""
        self.grounds.take_in(self, entry, verified_statement, machine)
        self.number, self.head, self.time = entry.number, entry.id, entry.time
        self.ids[entry.number] = entry.id
        signed = SignedEntry(entry.number, entry.time, verified_statement) if verified_statement else None
        if verified_statement is not None:
            self.statements[verified_statement.statement.id] = entry.number
        match entry.act:
            case Genesis(machine=public):
                self.genesis, self.restarts, self.since = entry.id, entry.act.restarts, entry.number
                self.geneses.add(entry.id)
                self.begin(EnrolMachine(name=entry.machine, key=public))
            case PolicyChange(change=change):
                self.change(change)
            case Registration() as act:
                self.first_thresholds(act)
                policy = self.policy.thresholds[act.model]
                self.looks[entry.number] = Look(entry.number, entry.time, act, act.settings == policy, policy)
            case Opened() as act:
                self.opened[entry.number] = act
            case Erasure() as act:
                self.erased[entry.number] = self.looks[act.registration]
            case Request() as act:
                self.requests[entry.number] = RequestState(entry.number, entry.id, entry.time, act, verified_statement)
            case Approval(request=request):
                assert signed
                self.requests[request].approvals.append(signed)
            case Override(request=request):
                assert signed
                self.requests[request].overrides.append(signed)
            case Rejection(request=request):
                assert signed
                rejected = self.requests[request].act
                pair = (rejected.model, *rejected.content.pair)
                self.rejected[pair], self.rejections[entry.number] = signed, pair
                self.rejected_runs[entry.number] = rejected.run
            case Lift(rejection=number):
                self.rejected.pop(self.rejections[number], None)
            case Promotion() as act:
                self._promote(entry, act)
            case Rollback() as act:
                self._move(Move(entry.number, entry.time, act.model, act.to, signed))
            case _:
                pass

    def begin(self, machine: EnrolMachine) -> None:
        """Start with one machine and no people. After a restart the rules stay, so that a restart
        is not a way around them. The marks of compromised keys stay too."""
        self.policy = self.policy.model_copy(update={"people": {}, "machines": {}})
        self.had_owner = False
        self.change(machine)

    def change(self, change: Change) -> None:
        self.policy, self.signers = changed(self.policy, change), signers(self.signers, change)
        self.policy_yaml = self.policy.yaml()
        self.had_owner |= bool(self.policy.holders("owner"))

    def first_thresholds(self, act: Registration) -> None:
        """A model's first registration makes its run's thresholds the model's."""
        if act.model not in self.policy.thresholds:
            self.change(SetThresholds(model=act.model, settings=act.settings))

    def _promote(self, entry: Entry, act: Promotion) -> None:
        request = self.requests[act.request]
        approvals = tuple(approval for approval in request.approvals if approval.number in act.approvals)
        self.promotions[entry.number] = Champion(
            entry.number,
            entry.id,
            entry.time,
            act.model,
            request.act.run,
            request.act.revision,
            act.before,
            approvals,
            tuple(request.overrides),
            own_run=request.starter_name in {approval.person for approval in approvals},
            request=act.request,
            smoke=act.smoke,
        )
        request.approvals.clear()
        request.promoted.append(entry.number)
        self._move(Move(entry.number, entry.time, act.model, entry.number))

    def _move(self, move: Move) -> None:
        self.moves.setdefault(move.model, []).append(move)


def _terms(act: Registration) -> tuple[str, str]:
    return act.settings, act.examples.sha256
