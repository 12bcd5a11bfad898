"""What is refused before a child is started, and the environment it is started in."""

import json
import subprocess
import sys

import pytest

from app.contract import Claim, Engine, RunConfig
from worker import probe
from worker.__main__ import main, url_problem
from worker.environment import child_environment
from worker.handover import AttemptInput
from worker.preflight import preflight

CPU = [Engine.CPU]


def config(**fields):
    return RunConfig.model_validate(fields)


def test_the_default_config_has_nothing_against_it():
    assert preflight(config(), {}, CPU) is None


ALLOWED = {"TAUTRAIN_KEY_VARIABLES": "OTHER, MY_KEY"}


@pytest.mark.parametrize("environment", [ALLOWED, {**ALLOWED, "MY_KEY": ""}])
def test_a_missing_key_names_the_variable_and_the_field(environment):
    user = {"kind": "openai", "api_key_env": "MY_KEY"}
    problem = preflight(config(user_simulator=user), environment, CPU)
    assert problem.code == "missing_key"
    assert "MY_KEY" in problem.message
    assert "user_simulator.api_key_env" in problem.message
    assert preflight(config(user_simulator=user), {**ALLOWED, "MY_KEY": "k"}, CPU) is None


def test_a_config_cannot_read_a_variable_that_the_worker_s_operator_did_not_list():
    user = {"kind": "openai", "api_key_env": "AWS_SECRET"}
    problem = preflight(config(user_simulator=user), {"AWS_SECRET": "s", **ALLOWED}, CPU)
    assert problem.code == "key_not_allowed"
    assert "user_simulator.api_key_env" in problem.message
    assert "TAUTRAIN_KEY_VARIABLES" in problem.message
    usual = config(user_simulator={"kind": "openai"})
    assert preflight(usual, {"OPENAI_API_KEY": "k"}, CPU) is None


@pytest.mark.parametrize("path", ["/no/such/model", "./no/model", "~/no/model", "no-such-model"])
def test_a_model_that_is_not_there_names_the_field_and_the_path(path):
    problem = preflight(config(model={"path": path}), {}, CPU)
    assert problem.code == "model_not_found"
    assert "model.path" in problem.message
    assert path in problem.message


def put_model(folder):
    """The names that a whole model's folder has."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (folder / name).write_text("{}")
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    return folder


@pytest.mark.parametrize(
    ("lacks", "named"),
    [
        ("config.json", "config.json"),
        ("tokenizer.json", "tokenizer"),
        ("model.safetensors", "weights"),
    ],
)
def test_a_folder_that_is_no_whole_model_names_what_is_missing(tmp_path, lacks, named):
    (put_model(tmp_path / "model") / lacks).unlink()
    problem = preflight(config(model={"path": str(tmp_path / "model")}), {}, CPU)
    assert problem.code == "model_not_found"
    assert "model.path" in problem.message
    assert problem.message.partition("no whole model: ")[2].startswith("no ")
    assert named in problem.message.partition("no whole model: ")[2]


def test_a_file_is_no_model(tmp_path):
    (tmp_path / "model.gguf").write_text("")
    problem = preflight(config(model={"path": str(tmp_path / "model.gguf")}), {}, CPU)
    assert problem.code == "model_not_found"
    assert "is not a folder" in problem.message


@pytest.mark.parametrize("text", ["{}", '{"chat_template": null}', "[]", "garbage", None])
def test_a_tokenizer_without_a_chat_template_is_refused(tmp_path, text):
    folder = put_model(tmp_path / "model")
    settings = folder / "tokenizer_config.json"
    settings.unlink() if text is None else settings.write_text(text)
    asked = config(model={"path": str(folder)})
    problem = preflight(asked, {}, CPU)
    assert problem.code == "no_chat_template"
    assert "tokenizer" in problem.message
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert preflight(asked, {}, CPU) is None


@pytest.mark.parametrize(
    "path", ["x" * 5000, "/" + "x" * 5000, "~" + "x" * 5000, "a/" + "x" * 5000]
)
def test_a_very_long_name_is_not_found(tmp_path, path):
    problem = preflight(config(model={"path": path}), {"HF_HOME": str(tmp_path)}, CPU)
    assert problem.code == "model_not_found"
    assert len(problem.message) < 600


def test_a_model_that_is_there_is_fine(tmp_path, monkeypatch):
    assert preflight(config(model={"path": str(put_model(tmp_path))}), {}, CPU) is None
    put_model(tmp_path / "org" / "name")
    monkeypatch.chdir(tmp_path)
    environment = child_environment({}, config(model={"path": "org/name"}), 1)
    assert preflight(config(model={"path": "org/name"}), environment, CPU) is None
    assert environment["HF_HUB_OFFLINE"] == "1"


HUB_ID = "Qwen/Qwen2.5-1.5B-Instruct"


def put_into_cache(home):
    """What the hub's library leaves of a model's config."""
    folder = home / "hub" / "models--Qwen--Qwen2.5-1.5B-Instruct"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("c0ffee")
    (folder / "snapshots" / "c0ffee").mkdir(parents=True)
    assert preflight(config(model={"path": HUB_ID}), {"HF_HOME": str(home)}, CPU) is not None
    (folder / "snapshots" / "c0ffee" / "config.json").write_text("{}")


def test_a_hub_id_is_allowed_on_a_gpu_unless_the_environment_forbids_the_hub(tmp_path):
    gpu = [Engine.GPU]
    hub = config(engine="gpu", model={"path": HUB_ID})
    online = {"HF_HOME": str(tmp_path)}
    assert preflight(hub, online, gpu) is None
    offline = {"HF_HUB_OFFLINE": "1", **online}
    problem = preflight(hub, offline, gpu)
    assert (problem.code, "HF_HUB_OFFLINE" in problem.message) == ("model_not_found", True)
    put_into_cache(tmp_path)
    assert preflight(hub, offline, gpu) is None


def test_a_hub_id_must_be_in_the_cache_already_on_a_cpu(tmp_path):
    hub = config(model={"path": HUB_ID})
    environment = {"HF_HOME": str(tmp_path)}
    problem = preflight(hub, environment, CPU)
    assert problem.code == "model_not_found"
    assert problem.message.startswith(f"model.path: '{HUB_ID}' ")
    put_into_cache(tmp_path)
    assert preflight(hub, environment, CPU) is None
    assert preflight(hub, {"HF_HOME": "/nowhere", "HF_HUB_CACHE": f"{tmp_path}/hub"}, CPU) is None


def test_a_name_that_the_hub_could_not_have_is_not_found(tmp_path):
    problem = preflight(config(model={"path": "org/a--b"}), {"HF_HOME": str(tmp_path)}, CPU)
    assert problem.code == "model_not_found"


def test_a_model_below_the_home_reaches_the_child_with_its_whole_path(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    put_model(tmp_path / "model")
    below_home = config(model={"path": "~/model"})
    assert preflight(below_home, {}, CPU) is None
    claim = Claim(
        run_id="run_1", name="n", attempt=1, lease_token="t", lease_seconds=9, config=below_home
    )
    told = AttemptInput.of(claim, api_url="http://127.0.0.1:9", data_dir=tmp_path / "data")
    told.write()
    read = AttemptInput.read(told.path)
    assert read.claim.config.model.path == str(tmp_path / "model")
    assert claim.config.model.path == "~/model"


def test_the_home_of_a_user_that_does_not_exist_is_not_found():
    problem = preflight(config(model={"path": "~no-such-user/model"}), {}, CPU)
    assert problem.code == "model_not_found"


def test_a_run_does_not_join_a_ray_that_the_worker_s_environment_names():
    assert "RAY_ADDRESS" not in child_environment({"RAY_ADDRESS": "10.0.0.1:6379"}, config(), 1)


def test_an_engine_that_is_not_installed_is_named_with_the_extra_to_install():
    problem = preflight(config(engine="gpu"), {}, CPU)
    assert problem.code == "engine_not_installed"
    assert "tautrain[gpu]" in problem.message


def test_nothing_phones_home_unless_the_config_asks():
    base = {"AGENTOPS_API_KEY": "k", "NO_PROXY": "intranet", "WANDB_MODE": "online"}
    quiet = child_environment(base, config(), 42)
    assert "AGENTOPS_API_KEY" not in quiet
    assert quiet["RAY_USAGE_STATS_ENABLED"] == "0"
    assert quiet["LITELLM_LOCAL_MODEL_COST_MAP"] == "True"
    assert quiet["WANDB_MODE"] == "disabled"
    assert quiet["HF_HUB_OFFLINE"] == "1"
    assert quiet["DO_NOT_TRACK"] == "1"
    assert quiet["NO_PROXY"] == "intranet,127.0.0.1,localhost,::1"
    assert quiet["TAUTRAIN_WORKER_PID"] == "42"
    asked = config(model={"path": "org/name"}, tracking={"backends": ["wandb"]})
    asking = child_environment(base, asked, 42)
    assert asking["WANDB_MODE"] == "online"
    assert "HF_HUB_OFFLINE" not in asking


def test_the_threads_a_user_set_are_kept():
    assert child_environment({"OMP_NUM_THREADS": "3"}, config(), 1)["OMP_NUM_THREADS"] == "3"
    assert int(child_environment({}, config(), 1)["OMP_NUM_THREADS"]) >= 1


def test_the_probe_finds_this_machine_and_imports_nothing_heavy(repository):
    script = """
import json, sys
import worker.__main__
from worker.probe import probe
found = probe("here")
heavy = {"torch", "tau2", "agentlightning", "verl", "ray", "transformers", "numpy"}
print(json.dumps([json.loads(found.model_dump_json()), sorted(heavy & set(sys.modules))]))
"""
    answer = subprocess.run(
        [sys.executable, "-c", script], cwd=repository, capture_output=True, text=True, check=True
    )
    found, heavy = json.loads(answer.stdout)
    assert heavy == []
    assert found["cpus"] >= 1
    assert found["memory_bytes"] > 2**28
    assert found["versions"]["python"].startswith("3.")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TAUTRAIN_URL", "ftp://api:8321"),
        ("TAUTRAIN_URL", "api:8321"),
        ("TAUTRAIN_URL", "http://u:secret@api:port"),
        ("TAUTRAIN_URL", "http://u:secret@api:99999"),
        ("TAUTRAIN_URL", "http://"),
        ("TAUTRAIN_URL", "http://[::1"),
        ("TAUTRAIN_PORT", "none"),
    ],
)
def test_an_address_that_is_none_is_one_line_that_names_its_variable(
    monkeypatch, capsys, variable, value
):
    monkeypatch.delenv("TAUTRAIN_URL", raising=False)
    monkeypatch.setenv(variable, value)
    assert main([]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert variable in line
    assert "secret" not in line


@pytest.mark.parametrize("url", ["http://api:8321", "https://[::1]:1/below", "http://127.0.0.1"])
def test_an_address_that_is_one_is_taken(url):
    assert url_problem(url, {"TAUTRAIN_URL": url}) is None


def test_a_gpu_engine_needs_a_gpu_and_vllm(monkeypatch):
    installed = {"torch", "verl"}
    monkeypatch.setattr(probe, "_installed", lambda module: module in installed)
    assert probe.installed_engines(gpus=1) == [Engine.CPU]
    installed.add("vllm")
    assert probe.installed_engines(gpus=1) == [Engine.CPU, Engine.GPU]
    assert probe.installed_engines(gpus=0) == [Engine.CPU]
    installed.remove("torch")
    assert probe.installed_engines(gpus=1) == []
    with pytest.raises(probe.NoEngine, match=r"tautrain\[cpu\]"):
        probe.probe("nothing here")


@pytest.mark.parametrize(
    ("visible", "count"), [(None, 4), ("0,1", 2), ("", 0), ("-1", 0), ("2,-1,3", 1)]
)
def test_only_gpus_that_a_child_would_see_are_counted(monkeypatch, visible, count):
    monkeypatch.setattr(probe, "_gpus_of_machine", lambda: 4)
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert probe.count_gpus(environment) == count
