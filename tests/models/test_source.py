"""The base model's bytes: what a name means, what is pinned, and that other bytes are refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rft import config, files, reports
from rft.config import Policy
from rft.errors import ConfigError, InfrastructureError, RftError, UserError
from rft.models import hashes, source, weights
from rft.models.templates import with_arguments
from rft.reports.model import sha256_of
from tests import small_policy
from tests.ladder import inside, params, run

STATE = Path(".rft")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, ladder_recipe: Path) -> Path:
    return small_policy.save(*small_policy.build(ladder_recipe), tmp_path_factory.mktemp("model") / "given")


@pytest.fixture
def given(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "given")


def resolved(name: Path | str, root: Path, **more: Any) -> source.Resolved:
    return source.resolve(Policy(model=str(name), **more), root, root / STATE)


def begin(root: Path, name: Path | str, **more: Any) -> Policy:
    """What the flow does before a run."""
    section = Policy(model=str(name), **more)
    source.write(source.resolve(section, root, root / STATE), root)
    return section


# -- folders ---------------------------------------------------------------------------------------
def test_a_folder_has_the_hash_of_all_its_files_and_not_of_its_place(given: Path, tmp_path: Path) -> None:
    one = resolved(given, tmp_path).model
    assert one.kind == "folder"
    assert one.sha256 == files.tree_sha256(given)
    assert set(one.files) == {path.name for path in given.iterdir()}
    moved = given.rename(tmp_path / "moved")
    (moved / ".git").mkdir()
    (moved / ".git/HEAD").write_text("ref")
    assert resolved(moved, tmp_path).model.sha256 == one.sha256 == hashes.sha256(moved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "config.json").write_text("{}"), "config.json has SHA-256"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors is gone"),
        (lambda folder: (folder / "added.json").write_text("{}"), "added.json was added"),
        (shutil.rmtree, "is gone"),
    ],
)
def test_bytes_that_changed_since_the_run_began_are_refused_by_name(
    given: Path, tmp_path: Path, change: Any, message: str
) -> None:
    section = begin(tmp_path, given)
    with inside(tmp_path):
        assert source.given(section).folder == given
        change(given)
        with pytest.raises(UserError, match=message):
            source.given(section)


def test_a_change_that_keeps_size_and_time_is_found(given: Path, tmp_path: Path) -> None:
    section = begin(tmp_path, given)
    path = given / "model.safetensors"
    before, content = path.stat(), bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with inside(tmp_path), pytest.raises(UserError, match=r"model.safetensors has SHA-256"):
        source.given(section)


def test_a_file_is_hashed_once(given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = begin(tmp_path, given)

    def again(path: Path) -> str:
        raise AssertionError(f"{path} was hashed again")

    monkeypatch.setattr(files, "sha256", again)
    with inside(tmp_path):
        source.given(section)


def test_a_lost_or_broken_memory_of_hashes_costs_time_only(given: Path, tmp_path: Path) -> None:
    section = begin(tmp_path, given)
    for path in (tmp_path / ".rft/hashes").iterdir():
        path.write_text("{")
    with inside(tmp_path):
        source.given(section)


def test_weights_in_pieces_are_loaded_and_a_missing_piece_is_named(given: Path, tmp_path: Path) -> None:
    network, _ = weights.load(str(given), Policy(), small_policy.device())
    (given / "model.safetensors").unlink()
    network.save_pretrained(given, max_shard_size="100KB")
    shards = sorted(given.glob("model-*.safetensors"))
    assert len(shards) > 1
    section = begin(tmp_path, given)
    with inside(tmp_path):
        again, _ = weights.load(source.given(section), section, small_policy.device())
    assert weights.weights_sha256(again) == weights.weights_sha256(network)
    assert weights.num_parameters(str(given)) == sum(each.numel() for each in network.parameters())
    shards[1].unlink()
    with pytest.raises(UserError, match=f"lacks {shards[1].name}, a shard"):
        resolved(given, tmp_path)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "holds no config.json"),
        (lambda folder: (folder / "tokenizer_config.json").unlink(), "holds no tokenizer_config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "holds no weights"),
        (lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"), "runs code when"),
    ],
)
def test_a_folder_that_is_no_model_is_refused_before_the_run(
    given: Path, tmp_path: Path, spoil: Any, message: str
) -> None:
    spoil(given)
    with pytest.raises(UserError, match=message):
        resolved(given, tmp_path)


def test_a_truncated_weights_file_is_one_message(given: Path, tmp_path: Path) -> None:
    path = given / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UserError, match=r"cannot be loaded: .*Name a whole model folder"):
        weights.load(str(given), Policy(), small_policy.device())


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"model": "./nowhere"}, "no such folder or file"),
        ({"model": "a b"}, "no such folder or file"),
        ({"model": "../given"}, "outside of this folder"),
        ({"model": "given", "revision": "main"}, "Remove policy.revision"),
        ({"model": "given", "chat_template": "no.jinja"}, "no.jinja cannot be read"),
        ({"model": "text.gguf"}, "does not begin with GGUF"),
    ],
)
def test_a_name_that_means_nothing_says_what_it_may_be(
    given: Path, tmp_path: Path, section: dict[str, Any], message: str
) -> None:
    (tmp_path / "text.gguf").write_text("no model")
    with pytest.raises(UserError, match=message):
        source.resolve(Policy(**section), tmp_path, tmp_path / STATE)


@pytest.mark.parametrize("key", [{"revision": "main"}, {"chat_template": "x"}, {"template_arguments": {"a": 1}}])
def test_settings_of_a_given_model_are_refused_without_one(key: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="is for a given model"):
        config.parse(key, "params.yaml", Policy)


def test_a_stage_by_itself_wants_the_model_pinned(given: Path, tmp_path: Path) -> None:
    source.write(source.resolve(Policy(), tmp_path, tmp_path / STATE), tmp_path)
    with inside(tmp_path), pytest.raises(UserError, match=r"describes no model, but .* rft doctor model --write"):
        source.given(Policy(model=str(given)))


def test_a_run_of_a_version_that_pinned_nothing_is_verified_by_its_report(given: Path, tmp_path: Path) -> None:
    told = reports.PolicyReport(kind="given", model=str(given), sha256=files.tree_sha256(given), num_parameters=1)
    with inside(tmp_path):
        assert source.base(told, Policy(model=str(given))).folder == given
        (given / "config.json").write_text("{}")
        with pytest.raises(UserError, match="had"):
            source.base(told, Policy(model=str(given)))


# -- chat templates --------------------------------------------------------------------------------
TOLD = [{"role": "user", "content": "Hello?"}]


def test_a_template_of_ones_own_replaces_the_models_and_is_pinned(given: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.jinja"
    mine.write_text("{{ messages[0].content }} {{ mood }}")
    section = begin(tmp_path, given, chat_template="mine.jinja", template_arguments={"mood": "calm"})
    with inside(tmp_path):
        found = weights.tokenizer(source.given(section))
        assert found.apply_chat_template(TOLD, tokenize=False) == "Hello? calm"
        mine.write_text("something else")
        assert weights.tokenizer(source.given(section)).apply_chat_template(TOLD, tokenize=False) == "Hello? calm"
        (tmp_path / "data/model/chat_template.jinja").write_text("spoiled")
        with pytest.raises(UserError, match=r"chat_template.jinja has SHA-256"):
            source.given(section)


def test_a_template_that_is_no_jinja_is_named_by_its_line(given: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text("{{ messages }}\n{% if %}")
    section = begin(tmp_path, given, chat_template="mine.jinja")
    with inside(tmp_path), pytest.raises(ConfigError, match=r"policy.chat_template: line 2"):
        weights.tokenizer(source.given(section))


@pytest.mark.parametrize("value", [True, False, None, 3, 0.5, 'say "no"\n{{ x }}', ["a", 1], {"k": [None, True]}])
def test_arguments_reach_the_template_as_they_are(made: Path, value: Any) -> None:
    tokenizer = weights.tokenizer(str(made))
    template = "{% macro seen() %}{{ given | tojson }}{% endmacro %}{% for m in messages %}{{ seen() }}{% endfor %}"
    tokenizer.chat_template = with_arguments(template, {"given": value})
    assert json.loads(tokenizer.apply_chat_template(TOLD, tokenize=False)) == value


@pytest.mark.parametrize("name", ["thinking", "messages", "x"])
def test_an_argument_that_the_template_does_not_read_is_an_error(name: str) -> None:
    template = "{% set x = 1 %}{% generation %}{{ x }}{% endgeneration %}{{ enable_thinking }}{{ messages }}"
    assert with_arguments(template, {"enable_thinking": False}).endswith(template)
    with pytest.raises(ConfigError, match=f"template_arguments.{name}': the chat template does not read it"):
        with_arguments(template, {name: 1})


def test_a_template_with_an_error_is_named_by_its_line() -> None:
    with pytest.raises(ConfigError, match=r"policy.chat_template: line 2"):
        with_arguments("a\n{% if %}", {"x": 1})


def test_the_shipped_template_gives_a_model_tools(repository: Path, given: Path, tmp_path: Path) -> None:
    tokenizer = weights.tokenizer(str(given))
    own = tokenizer.chat_template
    tokenizer.chat_template = (repository / source.SHIPPED).read_text()
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    told: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        *TOLD,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "7"},
    ]
    for messages in (told, told[1:]):
        text = tokenizer.apply_chat_template(messages, tools=[tool], tokenize=False, add_generation_prompt=True)
        assert '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call><|im_end|>' in text
        assert "<tool_response>\n7\n</tool_response>" in text
    system = tokenizer.apply_chat_template(told, tools=[tool], tokenize=False)
    tokenizer.chat_template = own
    assert system == tokenizer.apply_chat_template(told, tools=[tool], tokenize=False), "the embedded policy's own"
    tokenizer.chat_template = (repository / source.SHIPPED).read_text()
    assert tokenizer.apply_chat_template(TOLD, tokenize=False) == "<|im_start|>user\nHello?<|im_end|>\n"


# -- GGUF ------------------------------------------------------------------------------------------
def gguf(folder: Path, path: Path, architecture: str = "llama") -> Path:
    """Write a small Llama as GGUF, by the library of those who define the format."""
    import torch
    from gguf import GGUFWriter
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    tokenizer = weights.tokenizer(str(folder))
    vocabulary = tokenizer.get_vocab()
    size = max(vocabulary.values()) + 1
    shape = LlamaConfig(
        vocab_size=size, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True,
    )  # fmt: skip
    network = LlamaForCausalLM(shape)
    out = GGUFWriter(path, architecture)
    out.add_context_length(64)
    out.add_embedding_length(64)
    out.add_block_count(1)
    out.add_feed_forward_length(64)
    out.add_head_count(2)
    out.add_head_count_kv(2)
    out.add_layer_norm_rms_eps(1e-6)
    out.add_rope_dimension_count(32)
    out.add_vocab_size(size)
    names = {place: token for token, place in vocabulary.items()}
    out.add_tokenizer_model("gpt2")
    out.add_token_list([names.get(place, f"<unused{place}>") for place in range(size)])
    out.add_token_types([3 if names.get(place, "<").startswith("<") else 1 for place in range(size)])
    out.add_token_scores([0.0] * size)
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    out.add_token_merges([" ".join(pair) for pair in merges])
    out.add_eos_token_id(tokenizer.eos_token_id)
    out.add_bos_token_id(tokenizer.eos_token_id)
    out.add_chat_template(tokenizer.chat_template)
    state = network.state_dict()
    theirs = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "blk.0.attn_norm.weight": "model.layers.0.input_layernorm.weight",
        "blk.0.ffn_norm.weight": "model.layers.0.post_attention_layernorm.weight",
        "blk.0.attn_q.weight": "model.layers.0.self_attn.q_proj.weight",
        "blk.0.attn_k.weight": "model.layers.0.self_attn.k_proj.weight",
        "blk.0.attn_v.weight": "model.layers.0.self_attn.v_proj.weight",
        "blk.0.attn_output.weight": "model.layers.0.self_attn.o_proj.weight",
        "blk.0.ffn_gate.weight": "model.layers.0.mlp.gate_proj.weight",
        "blk.0.ffn_up.weight": "model.layers.0.mlp.up_proj.weight",
        "blk.0.ffn_down.weight": "model.layers.0.mlp.down_proj.weight",
    }
    for name, ours in theirs.items():
        out.add_tensor(name, state[ours].numpy())
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


@pytest.mark.slow
def test_a_gguf_file_is_a_model(made: Path, tmp_path: Path, ladder_recipe: Path) -> None:
    path = gguf(made, tmp_path / "small.gguf")
    with inside(tmp_path):
        run("policy", params(ladder_recipe, policy={"model": "small.gguf"}))
        told = reports.read(reports.PolicyReport, tmp_path / "data/policy/report.json")
        assert (told.kind, told.sha256) == ("given", files.sha256(path))
        section = Policy(model="small.gguf")
        network, tokenizer = weights.load(source.base(told, section), section, small_policy.device())
        assert sum(each.numel() for each in network.parameters()) == told.num_parameters
        assert tokenizer.chat_template == weights.tokenizer(str(made)).chat_template
        network.save_pretrained(tmp_path / "saved")
        again, _ = weights.load(source.base(told, section), section, small_policy.device())
        assert weights.weights_sha256(again) == weights.weights_sha256(network)
        path.write_bytes(path.read_bytes() + b"x")
        with pytest.raises(UserError, match=r"small.gguf has SHA-256"):
            source.base(told, section)


@pytest.mark.parametrize("num_bytes", [10, 300, 3000, -100])
def test_a_gguf_that_was_cut_off_is_one_message(made: Path, tmp_path: Path, num_bytes: int) -> None:
    whole = gguf(made, tmp_path / "whole.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[:num_bytes])
    with pytest.raises(UserError, match=r"cut.gguf' cannot be loaded: .*Name a whole GGUF file"):
        weights.load(source.Source(tmp_path, "cut.gguf", "cut.gguf"), Policy(), small_policy.device())


def test_a_gguf_of_an_unknown_architecture_is_refused_by_name(made: Path, tmp_path: Path, ladder_recipe: Path) -> None:
    gguf(made, tmp_path / "odd.gguf", "frobnicate")
    with inside(tmp_path), pytest.raises(UserError, match=r"frobnicate.*Name a whole GGUF file of an architecture"):
        run("policy", params(ladder_recipe, policy={"model": "odd.gguf"}))


# -- a hub -----------------------------------------------------------------------------------------
COMMITS = {"main": "a" * 40, "v1": "b" * 40}
KEY = "hf_a_secret_token"


class Hub(ThreadingHTTPServer):
    """What a hub's client asks: which commit a name means, which files it has, and the files."""

    daemon_threads = True

    def __init__(self, folder: Path):
        super().__init__(("127.0.0.1", 0), Asked)
        self.folder, self.commits, self.asked = folder, dict(COMMITS), list[str]()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Asked(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, format: str, *args: object) -> None: ...

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/"):
            self._about(path.removeprefix("/api/models/"))
        else:
            self._file(*path.partition("/resolve/")[2].split("/", 1))

    def _about(self, path: str) -> None:
        name, _, revision = path.partition("/revision/")
        name, _, listed = name.partition("/tree/")
        commits = self.server.commits
        revision = revision or "main"
        if listed:
            self._answer(200, [self._entry(each) for each in sorted(self.server.folder.iterdir())])
        elif name == "us/shut":
            self._answer(403, {"error": "restricted"}, {"X-Error-Code": "GatedRepo"})
        elif name != "us/small":
            self._answer(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        elif revision not in commits and revision not in commits.values():
            self._answer(404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"})
        else:
            names = [{"rfilename": each.name} for each in sorted(self.server.folder.iterdir())]
            sha = commits.get(revision, revision)
            self._answer(200, {"id": name, "modelId": name, "sha": sha, "siblings": names})

    def _file(self, commit: str, name: str) -> None:
        found = self.server.folder / name
        if not found.is_file():
            self._answer(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
            return
        content = found.read_bytes()
        self.send_response(200)
        self.send_header("X-Repo-Commit", self.server.commits.get(commit, commit))
        self.send_header("ETag", f'"{files.sha256(found)}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def _entry(self, path: Path) -> dict[str, Any]:
        return {"type": "file", "path": path.name, "size": path.stat().st_size, "oid": files.sha256(path)[:40]}

    def _answer(self, status: int, value: Any, more: dict[str, str] | None = None) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        for name, text in {**(more or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


@pytest.fixture
def hub(given: Path) -> Iterator[Hub]:
    (given / "pytorch_model.bin").write_bytes(b"pickle")
    server = Hub(given)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def ask(root: Path, url: str, **section: Any) -> tuple[int, str, dict[str, Any]]:
    """In a process of its own, as the hub's client reads its address once."""
    code = (
        "import json, sys; from pathlib import Path; from rft.config import Policy; from rft.models import source\n"
        "from rft.errors import RftError\n"
        "try:\n"
        "    found = source.resolve(Policy(**json.loads(sys.argv[1])), Path(), Path('.rft'))\n"
        "    source.write(found, Path()); print(found.model.model_dump_json())\n"
        "except RftError as error:\n"
        "    sys.exit(f'{type(error).__name__}: {error}')\n"
    )
    environment = {
        **os.environ,
        "HF_ENDPOINT": url,
        "HF_HOME": str(root / "hub"),
        "HF_TOKEN": KEY,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "PYTHONPATH": str(Path(source.__file__).parents[2]),
    }
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(section)], cwd=root, env=environment, capture_output=True, text=True
    )
    found = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}
    return done.returncode, done.stderr, found


@pytest.mark.slow
def test_a_model_of_a_hub_is_pinned_by_its_commit_and_needs_no_hub_afterwards(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, errors, found = ask(tmp_path, hub.url, model="us/small")
    assert status == 0, errors
    assert (found["kind"], found["revision"]) == ("hub", COMMITS["main"])
    assert "model.safetensors" in found["files"]
    assert "pytorch_model.bin" not in found["files"]
    assert not any("pytorch_model.bin" in path for path in hub.asked)
    other = ask(tmp_path, hub.url, model="us/small", revision="v1")[2]
    assert other["revision"] == COMMITS["v1"]
    assert other["files"] == found["files"]
    assert other["sha256"] != found["sha256"], "the hash covers the revision"
    gone = "http://127.0.0.1:9"
    again = ask(tmp_path, gone, model="us/small", revision=COMMITS["main"])
    assert again[0] == 0, again[1]
    assert again[2] == found
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub/hub"))
    section = Policy(model="us/small", revision=COMMITS["main"])
    with inside(tmp_path):
        place = source.given(section)
        network, _ = weights.load(place, section, small_policy.device())
        assert network.config.model_type == "qwen3"
        blob = (place.folder / "config.json").resolve()
        blob.write_text(blob.read_text() + " ")
        with pytest.raises(UserError, match=r"config.json has SHA-256"):
            source.given(section)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"model": "us/none"}, "UserError: policy.model = 'us/none': {url} has no such model"),
        ({"model": "us/shut"}, "UserError: policy.model = 'us/shut': {url} shows it only to those"),
        ({"model": "us/small", "revision": "v9"}, "UserError: policy.revision = 'v9': us/small has no such commit"),
        ({"model": "a/b/c"}, "UserError: policy.model = 'a/b/c': no such folder or file"),
    ],
)
def test_what_a_hub_does_not_have_is_named_with_the_remedy(
    hub: Hub, tmp_path: Path, section: dict[str, Any], message: str
) -> None:
    status, errors, _ = ask(tmp_path, hub.url, **section)
    assert status != 0
    assert message.format(url=hub.url) in errors
    assert KEY not in errors


def test_a_token_too_short_to_be_one_is_no_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "x")
    with pytest.raises(InfrastructureError, match="cannot be reached"):
        resolved("us/small", tmp_path)


@pytest.mark.slow
def test_a_hub_out_of_reach_is_no_fault_of_the_settings(tmp_path: Path) -> None:
    status, errors, _ = ask(tmp_path, "http://127.0.0.1:9", model="us/small")
    assert status != 0
    assert "InfrastructureError: policy.model = 'us/small': http://127.0.0.1:9 cannot be reached" in errors
    assert "Traceback" not in errors


def test_the_hash_is_that_of_a_folder_for_any_names() -> None:
    found = {name: reports.ModelFile(sha256="0" * 64, num_bytes=1) for name in ("a/b", "a.json", "a-b")}
    assert sha256_of(found, None) != sha256_of(found, "c" * 40)
    assert issubclass(UserError, RftError)
