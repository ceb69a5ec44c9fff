"""What MLflow and the champion's file show, read as it is.

aliases.py compares it with the ledger. Both are projections: nothing that is audited rests on them,
but people and servers look there. An audit does not create MLflow's database in a clone that has
none. If a server does not answer, it is asked only once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from rft import reports
from rft.errors import RftError
from tasks.audit.graph import altered, unverifiable
from tasks.display import tracking
from tasks.ledger.state import State
from tasks.promotion.champion_file import ChampionFile, Written
from tasks.promotion.mlflow_registry import prompt_name
from tasks.runs.clone import Clone

NUMBER, LEDGER, ACT = "rft.champion", "rft.ledger", "rft.act"


@dataclass
class Shown:
    clone: Clone
    _why: str = ""
    """Why MLflow is not reachable, once that is known."""
    _versions: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    _models: dict[str, Any] = field(default_factory=dict[str, Any])

    @cached_property
    def _client(self) -> Any:
        address = tracking.address(self.clone)
        if address.startswith("sqlite:") and not (self.clone.mlruns / "mlflow.db").exists():
            self._why = "MLflow is not reachable: this clone has no mlruns/mlflow.db"
            return None
        try:
            return tracking.client(self.clone)
        except RftError as error:
            self._why = f"MLflow is not reachable: {error}"
            return None

    def _asked(self, ask: Any) -> Any:
        """Ask MLflow. Returns None for what it does not have. Raises Broken where it cannot be
        reached."""
        if self._why or self._client is None:
            raise unverifiable(self._why)
        from mlflow.exceptions import MlflowException

        try:
            return ask(self._client)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            self._why = f"MLflow is not reachable: {' '.join(str(error).split())[:200]}"
        except Exception as error:  # from its database driver or its HTTP client
            self._why = f"MLflow is not reachable: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise unverifiable(self._why)

    def model(self, name: str) -> Any:
        if name not in self._models:
            self._models[name] = self._asked(lambda client: client.get_registered_model(name))
        return self._models[name]

    def version(self, model: str, number: int, state: State) -> Any:
        """Return the registered version that stands for a promotion."""
        if model not in self._versions:
            found = self._asked(lambda client: [*client.search_model_versions(f"name = '{model}'")])
            self._versions[model] = found or []
        return next(
            (
                each
                for each in self._versions[model]
                if each.tags.get(NUMBER) == str(number) and each.tags.get(LEDGER) in state.geneses
            ),
            None,
        )

    def number(self, model: str, version: str) -> int | None:
        """Return the number of the promotion that a version says it stands for."""
        found = next((each for each in self._versions[model] if str(each.version) == version), None)
        told = found.tags.get(NUMBER, "") if found is not None else ""
        return int(told) if told.isdigit() else None

    def stray(self, model: str, entry: str) -> Any:
        """Return a registered version that names a promotion's entry, with any other tags."""
        return next((each for each in self._versions.get(model, ()) if each.tags.get("entry") == entry), None)

    def prompt(self, model: str, version: str) -> str | None:
        """Return the text of a registered prompt."""
        found = self._asked(lambda client: client.get_prompt_version(prompt_name(model), version))
        return None if found is None else str(found.template)

    def prompt_alias(self, model: str, alias: str) -> str | None:
        found = self._asked(lambda client: client.get_prompt_version_by_alias(prompt_name(model), alias))
        return None if found is None else str(found.version)

    def run(self, run_id: str) -> Any:
        return self._asked(lambda client: client.get_run(run_id))

    def file(self, model: str) -> Written | None:
        """Return the champion's file; None where there is none. Raises Broken for a file that
        agent-rft did not write."""
        path = ChampionFile(self.clone).path(model)
        try:
            return reports.parse(Written, path.read_bytes(), str(path))
        except FileNotFoundError:
            return None
        except (ValidationError, OSError) as error:
            where = path.relative_to(self.clone.root)
            raise altered(f"{where} is not as agent-rft writes it: {_first(error)}") from None


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(getattr(error, "strerror", error))
