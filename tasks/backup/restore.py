"""`rft backup restore`: verify a back-up, and lay it out as a clone.

Every byte is hashed before anything is written. So from a damaged back-up nothing is restored, and
the error names all that is damaged. The clone is made beside its final place, and renamed when it
is whole. Git checks its objects again as it unpacks the bundle, and the refs must be those of the
manifest. If the agents lie in another program's repository, that program's history is not in the
bundle, and is fetched from its remote first.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rft import files
from rft.errors import InfrastructureError, UserError
from tasks.backup import databases, manifest
from tasks.backup.manifest import File, Manifest
from tasks.backup.save import Tell
from tasks.runs.clone import Clone
from tasks.runs.git import GitError, git

_MARK, _HEAD, _PIECE = ".rft-restore", "refs/rft/restored", 1 << 20
_THEIRS = "refs/rft/theirs/"


def verify(folder: Path, tell: Tell) -> Manifest:
    """Hash all that the manifest names. Raises UserError naming each file that does not fit."""
    made = manifest.read(folder)
    if bad := _damaged(folder, made, tell):
        listed = "".join(f"\n  {line}" for line in bad)
        again = "Delete these files, and back up again from the clone, if it still exists: they are copied anew"
        raise UserError(f"{folder}: {len(bad)} of its files are damaged, so nothing is restored:{listed}\n{again}.")
    return made


def _damaged(folder: Path, made: Manifest, tell: Tell) -> list[str]:
    """Name what does not fit, each with the files that it holds."""
    wanted = {manifest.bundle(folder, made.git.bundle): (made.git.bundle, made.git.size, "Git's refs and objects")}
    names: dict[Path, list[str]] = {}
    for file in made.files:
        place = manifest.place(folder, file.sha256)
        names.setdefault(place, []).append(file.path)
        wanted[place] = file.sha256, file.size, ""
    found: list[str] = []
    num_bytes = 0
    for number, (place, (sha256, size, label)) in enumerate(wanted.items(), 1):
        if why := _differs(place, sha256, size):
            held = label or ", ".join(names[place])
            found.append(f"{place.relative_to(folder)}: {why}. It holds {held}")
        num_bytes += size
        tell("verify", number, len(wanted), num_bytes)
    return found


def _differs(place: Path, sha256: str, size: int) -> str:
    if not place.is_file():
        return "missing"
    if (there := place.stat().st_size) != size:
        return f"{there} bytes, and the manifest names {size}"
    try:
        return "" if files.sha256(place) == sha256 else "other bytes than the manifest names"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def restore(folder: Path, into: Path, tell: Tell, repository: str | None = None) -> Manifest:
    """Restore a back-up as a clone. Raises UserError for a folder that is not empty, and for a
    damaged or unfinished back-up.

    `repository` has the history that the back-up leaves out (default: the clone's remotes).
    """
    folder, into = folder.resolve(), into.resolve()
    _check_place(folder, into)
    made = verify(folder, tell)
    _assert_space(made, into)
    with _whole(into) as root:
        _lay_git(folder, made, root, repository)
        num_bytes = 0
        for number, file in enumerate(made.files, 1):
            _lay(manifest.place(folder, file.sha256), file, root)
            num_bytes += file.size
            tell("restore", number, len(made.files), num_bytes)
        _keep_cache_inside(root)
        for path in made.git.deleted:
            _assert_inside(root, path)
            (root / path).unlink(missing_ok=True)
        mlruns = Clone(root).mlruns
        if (mlruns / "mlflow.db").exists():
            inside = mlruns.parent.relative_to(root)
            databases.readdress(mlruns / "mlflow.db", Path(made.root) / inside, into / inside)
    return made


def _check_place(folder: Path, into: Path) -> None:
    if into.is_relative_to(folder) or folder.is_relative_to(into):
        raise UserError(f"{into}: the clone and its back-up cannot lie in each other. Name another folder.")
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise UserError(f"{into} is not empty. Name a folder that does not exist: nothing is written over.")


def _assert_space(made: Manifest, into: Path) -> None:
    there = next(path for path in into.parents if path.exists())
    needed, free = sum(file.size for file in made.files) + 2 * made.git.size, shutil.disk_usage(there).free
    if needed > free:
        what = f"the clone needs about {needed / 1e9:.2f} GB, and its disk has {free / 1e9:.2f} GB free"
        raise InfrastructureError(f"{into}: {what}. Nothing was restored.")


@contextmanager
def _whole(into: Path) -> Iterator[Path]:
    """Make a folder that gets its name at the end of the block, or is removed if the block
    fails."""
    part = into.with_name(f"{into.name}.part")
    if part.exists() and not (part / _MARK).exists():
        raise UserError(f"{part} is in the way: the clone is made there first. Move it, or name another folder.")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        (part / _MARK).touch()
        (part / "whole").mkdir()
        yield part / "whole"
        os.sync()
        os.rename(part / "whole", into)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _lay_git(folder: Path, made: Manifest, root: Path, repository: str | None) -> None:
    branch, bundle = made.git.branch, manifest.bundle(folder, made.git.bundle)
    git(root, "init", "--quiet", *(["--initial-branch", branch] if branch else []))
    if made.git.needs:
        _fetch_history(made, root, repository)
    try:
        held = manifest.heads(root, bundle)
        wanted = [f"+{name}:{_HEAD if name == 'HEAD' else name}" for name in held]
        git(root, "fetch", "--quiet", "--no-tags", "--update-head-ok", "--no-write-fetch-head", str(bundle), *wanted)
        for name in made.git.refs.keys() - held:
            git(root, "update-ref", _HEAD if name == "HEAD" else name, made.git.refs[name])
    except GitError as error:
        raise UserError(f"{bundle}: Git does not unpack it: {error}. Nothing was restored.") from None
    lines = git(root, "for-each-ref", "--format=%(refname) %(objectname)").splitlines()
    refs = dict(line.split(" ") for line in lines if not line.startswith(_THEIRS))
    refs["HEAD"] = refs.pop(_HEAD, "")
    if refs != made.git.refs:
        name = min(name for name, _ in {*refs.items()} ^ {*made.git.refs.items()})
        raise UserError(f"{bundle}: {name} differs from the manifest: one of the two was changed.")
    for name in [_HEAD, *(line.split(" ")[0] for line in lines if line.startswith(_THEIRS))]:
        git(root, "update-ref", "-d", name)
    if branch is None:
        git(root, "update-ref", "--no-deref", "HEAD", made.git.refs["HEAD"])
    git(root, "reset", "--quiet", "--hard", made.git.refs["HEAD"])
    for remote in made.git.remotes:
        git(root, "remote", "add", "--", remote.name, remote.url)


def _fetch_history(made: Manifest, root: Path, repository: str | None) -> None:
    """Fetch the program's own history. Raises UserError where none of the places has it."""
    places = [repository] if repository else [remote.url for remote in made.git.remotes]
    errors: list[str] = []
    for number, place in enumerate(places):
        refs = (f"+refs/heads/*:{_THEIRS}{number}/heads/*", f"+refs/tags/*:{_THEIRS}{number}/tags/*")
        try:
            git(root, "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--", place, *refs)
        except GitError as error:
            errors.append(f" ({str(error).rpartition('fatal: ')[2].splitlines()[0]})")
    there = git(root, "cat-file", "--batch-check", given="\n".join(made.git.needs).encode()).splitlines()
    if missing := [line.split(" ")[0] for line in there if line.endswith(" missing")]:
        what = f"the program's own history is not in the back-up, and {', '.join(places) or '(no remote)'} lacks commit"
        remedy = "Name a clone or an address that has it: --repository PATH"
        raise UserError(f"{what} {missing[0][:12]}.{''.join(errors)}. {remedy}. Nothing was restored.")


def _lay(source: Path, file: File, root: Path) -> None:
    """Copy a file, and hash it again while it is written."""
    target = root / file.path
    _assert_inside(root, file.path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    digest = hashlib.sha256()
    with source.open("rb") as there, target.open("wb") as here:
        while piece := there.read(_PIECE):
            digest.update(piece)
            here.write(piece)
    if digest.hexdigest() != file.sha256:
        raise InfrastructureError(f"{source} changed while it was copied. Nothing was restored.")
    os.utime(target, ns=(file.changed_ns, file.changed_ns))
    target.chmod(file.mode)


def _keep_cache_inside(root: Path) -> None:
    """Put DVC's cache inside the clone: a tracked `cache.dir` may lie on another machine, or be
    shared with others by now."""
    if Clone(root).dvc_cache != (root / ".dvc" / "cache").resolve():
        (root / ".dvc" / "config.local").write_text("[cache]\n    dir = cache\n", encoding="utf-8")


def _assert_inside(root: Path, path: str) -> None:
    if not (root / path).parent.resolve().is_relative_to(root.resolve()):
        raise UserError(f"{path}: a link of the checked-out tree leads out of the clone. Nothing was restored.")
