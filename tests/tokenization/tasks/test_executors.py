"""Ray and Slurm do what local workers do; markers that are worth nothing any more are forgotten."""

from __future__ import annotations

import json
import logging
import os
import re
import stat
import sys
from pathlib import Path

import pytest

from runtime.command import ConfigError
from runtime.progress import Progress
from tests.tokenization.steps import EXPECTED, NUM_TASKS, expected, make_stage, outputs, run_counts
from tokenization.tasks import ray_tasks
from tokenization.tasks.executors import Stage, forget_stale, run_local, run_ray, submit_slurm
from tokenization.tasks.slurm_tasks import parse_slurm_options
from tokenization.tasks.task_queue import TaskError

pytestmark = pytest.mark.timeout(120)


def _markers(work_dir: Path, name: str = "tiny") -> list[int]:
    return sorted(int(path.name) for path in (work_dir / "logs" / name / "completions").glob("*"))


class TestForgetStale:
    @pytest.fixture
    def stage(self, tmp_path) -> Stage:
        """A stage that has run."""
        stage = make_stage(tmp_path)
        forget_stale(stage, tmp_path)
        run_local([stage], tmp_path, 1)
        assert _markers(tmp_path) == list(range(NUM_TASKS))
        return stage

    def test_unchanged_tasks_stay_done(self, stage, tmp_path):
        forget_stale(stage, tmp_path)
        assert _markers(tmp_path) == [0, 1, 2, 3, 4, 5]

    def test_a_changed_identity_is_done_again(self, stage, tmp_path):
        changed = make_stage(tmp_path, text="other")
        identities = ("identity 0", "changed", *stage.identities[2:])
        changed = Stage(changed.name, changed.step, identities, changed.weights)
        forget_stale(changed, tmp_path)
        assert _markers(tmp_path) == [0, 2, 3, 4, 5]
        run_local([changed], tmp_path, 1)
        assert outputs(tmp_path) == {**EXPECTED, "1.txt": "other 1 of 6"}

    def test_an_identity_that_changes_back_is_not_done(self, stage, tmp_path):
        forget_stale(Stage("tiny", stage.step, ("x",) * NUM_TASKS, stage.weights), tmp_path)
        forget_stale(stage, tmp_path)
        assert _markers(tmp_path) == []

    def test_tasks_beyond_the_last_are_forgotten(self, stage, tmp_path):
        forget_stale(make_stage(tmp_path, num_tasks=4), tmp_path)
        assert _markers(tmp_path) == [0, 1, 2, 3]

    def test_what_cant_be_reused_is_done_again(self, stage, tmp_path):
        asked = []
        forget_stale(stage, tmp_path, lambda rank: asked.append(rank) or rank != 3)
        assert _markers(tmp_path) == [0, 1, 2, 4, 5]
        assert asked == [0, 1, 2, 3, 4, 5]

    def test_markers_without_identities_are_worth_nothing(self, stage, tmp_path):
        (tmp_path / "logs" / "tiny" / "identities.json").unlink()
        forget_stale(stage, tmp_path)
        assert _markers(tmp_path) == []

    def test_other_files_among_the_markers_are_left_alone(self, stage, tmp_path):
        other = tmp_path / "logs" / "tiny" / "completions" / "00000.txt"
        other.touch()
        forget_stale(make_stage(tmp_path, num_tasks=0), tmp_path)
        assert list(other.parent.iterdir()) == [other]

    @pytest.mark.parametrize("text", ["[", "{}", "[0, 1]"])
    def test_identities_that_are_not_ours_are_worth_nothing(self, stage, tmp_path, text):
        (tmp_path / "logs" / "tiny" / "identities.json").write_text(text)
        forget_stale(stage, tmp_path)
        assert _markers(tmp_path) == []

    def test_a_crash_on_the_way_forgets_no_change(self, stage, tmp_path, monkeypatch):
        def crash(path, value):
            raise OSError("the disk is full")

        changed = Stage("tiny", stage.step, ("changed", *stage.identities[1:]), stage.weights)
        with monkeypatch.context() as patched:
            patched.setattr("tokenization.tasks.executors.write_json", crash)
            with pytest.raises(OSError, match="full"):
                forget_stale(changed, tmp_path)
        forget_stale(changed, tmp_path)
        assert _markers(tmp_path) == [1, 2, 3, 4, 5]


def test_a_stage_has_an_identity_and_a_weight_for_each_task(tmp_path):
    with pytest.raises(ValueError, match="tiny: 1 identities, 2 weights"):
        Stage("tiny", make_stage(tmp_path).step, ("a",), (1, 2))


class TestProgress:
    def test_weights_of_finished_tasks_count_and_earlier_ones_not_for_the_rate(self, tmp_path):
        shown = []

        class Recorder(Progress):
            def __init__(self, *arguments, **options) -> None:
                super().__init__(*arguments, **options)
                shown.append((arguments, options))

            def update(self, completed: int) -> None:
                shown.append(completed)

        with pytest.raises(ConfigError):
            run_local([make_stage(tmp_path, {2: "refuse-once"})], tmp_path, 1, Recorder)
        # tasks weigh 1000, 1001, ... 1005: 6015 in all
        assert shown == [(("tiny", 6015), {"start": 0}), 1000, 1001]
        shown.clear()
        run_local([make_stage(tmp_path)], tmp_path, 1, Recorder)
        assert shown[0] == (("tiny", 6015), {"start": 2001})
        shown.clear()
        run_local([make_stage(tmp_path)], tmp_path, 1, Recorder)
        assert shown == []


def test_without_ray_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'zerobert\[ray\]'"):
        run_ray([make_stage(tmp_path)], tmp_path, 2)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", "--ray-address 127.0.0.1:1: nothing listens there"),
        ("cluster", "--ray-address cluster: must be HOST:PORT, or auto"),
        ("127.0.0.1:99999", "--ray-address 127.0.0.1:99999: nothing listens there"),
    ],
)
def test_an_address_where_nothing_listens_is_refused_at_once(tmp_path, address, message):
    pytest.importorskip("ray")
    with pytest.raises(ConfigError, match=message):
        run_ray([make_stage(tmp_path)], tmp_path, 2, address)


@pytest.mark.slow
class TestRay:
    """On one local cluster of 2 CPUs: it takes seconds to start."""

    @pytest.fixture(scope="class", autouse=True)
    def _cluster(self):
        pytest.importorskip("ray")
        with ray_tasks.ray_cluster(2, None):
            yield

    def test_writes_the_same_as_local_workers(self, tmp_path):
        run_ray([make_stage(tmp_path)], tmp_path, 2)
        assert outputs(tmp_path) == EXPECTED
        run_ray([make_stage(tmp_path)], tmp_path, 2)
        assert run_counts(tmp_path) == [1] * NUM_TASKS

    def test_a_killed_process_costs_its_task_alone(self, tmp_path):
        run_ray([make_stage(tmp_path, {1: "kill-once", 2: "pause"})], tmp_path, 2)
        assert outputs(tmp_path) == EXPECTED
        assert run_counts(tmp_path) == [1, 2, 1, 1, 1, 1]

    def test_a_task_that_always_dies_is_given_up(self, tmp_path):
        with pytest.raises(TaskError, match=r"^tiny: task 2: given up after 3 attempts; its worker was lost: "):
            run_ray([make_stage(tmp_path, {2: "kill"})], tmp_path, 2)
        assert run_counts(tmp_path)[2] == 3

    def test_bad_input_comes_out_as_it_is_and_a_second_run_goes_on(self, tmp_path):
        with pytest.raises(ConfigError, match=r"^corpus\.txt: task 2 is refused$"):
            run_ray([make_stage(tmp_path, {2: "refuse"})], tmp_path, 2)
        run_ray([make_stage(tmp_path)], tmp_path, 2)
        assert outputs(tmp_path) == EXPECTED
        assert run_counts(tmp_path)[:3] == [1, 1, 2]


@pytest.mark.slow
class TestRayClusters:
    def test_starts_a_cluster_and_ends_it(self, tmp_path):
        ray = pytest.importorskip("ray")
        run_ray([make_stage(tmp_path)], tmp_path, 2)
        assert outputs(tmp_path) == EXPECTED
        assert not ray.is_initialized()

    def test_an_address_without_a_cluster(self, tmp_path):
        pytest.importorskip("ray")
        with pytest.raises(ConfigError, match="--ray-address auto: no cluster can be reached there"):
            run_ray([make_stage(tmp_path)], tmp_path, 2, "auto")


SBATCH = """#!{python}
# Runs a job at once: each task of its array, one after the other, if the jobs it waits for ended well.
import os, re, subprocess, sys
from pathlib import Path
folder = Path(os.environ["STUB_DIR"])
script = sys.argv[-1]
text = Path(script).read_text()
job = str(100 + len(list(folder.glob("*.script"))))
(folder / (job + ".script")).write_text(text)
(folder / (job + ".arguments")).write_text("\\n".join(sys.argv[1:-1]))
if "#SBATCH --partition=none" in text:
    sys.exit("sbatch: error: invalid partition specified: none")
after = re.findall(r"--dependency=afterok:(\\d+)", "\\n".join(sys.argv))
ok = all((folder / (other + ".ok")).exists() for other in after)
array = re.search(r"#SBATCH --array=0-(\\d+)", text)
last = int(array.group(1)) if array else 0
environment = {{key: value for key, value in os.environ.items() if key != "PYTHONPATH"}}
environment["PYTHONPATH"] = os.environ["STUB_PYTHONPATH"]
environment.update(SLURM_JOB_ID=job, SLURM_NODELIST="node[1-2]", RUN_OFFSET="0")
for index in range(last + 1) if ok else []:
    if array:
        environment["SLURM_ARRAY_TASK_ID"] = str(index)
    with open(folder / f"{{job}}_{{index}}.out", "w") as log:
        code = subprocess.run(["bash", script], env=environment, stdout=log, stderr=log, cwd="/").returncode
    ok = ok and code == 0
if ok:
    (folder / (job + ".ok")).touch()
print("Submitted batch job " + job)
"""
SRUN = """#!/bin/bash
while [[ $1 == -* ]]; do
  if [[ $1 == -n ]]; then shift; fi
  shift
done
exec "$@"
"""
SCONTROL = "#!/bin/bash\nprintf 'node1\\nnode2\\n'\n"


@pytest.mark.slow
class TestSlurm:
    """Stand-ins for sbatch, srun and scontrol record what is submitted, and run it."""

    @pytest.fixture
    def slurm(self, tmp_path, monkeypatch) -> Path:
        """The folder of what was submitted."""
        programs = tmp_path / "bin"
        programs.mkdir()
        for name, text in {"sbatch": SBATCH.format(python=sys.executable), "srun": SRUN, "scontrol": SCONTROL}.items():
            (programs / name).write_text(text)
            (programs / name).chmod(stat.S_IRWXU)
        folder = tmp_path / "submitted"
        folder.mkdir()
        monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
        monkeypatch.setenv("STUB_DIR", str(folder))
        monkeypatch.setenv("STUB_PYTHONPATH", str(Path(__file__).resolve().parents[3]))
        return folder

    @staticmethod
    def _directives(folder: Path, job: str) -> dict[str, str]:
        lines = re.findall(r"#SBATCH --([a-z-]+)(?:=(.*))?", (folder / f"{job}.script").read_text())
        return dict(lines)

    def test_stages_in_order_write_the_same_as_local_workers(self, slurm, tmp_path):
        work_dir = tmp_path / "work"
        work_dir.mkdir()
        stages = [make_stage(work_dir / name, name=name, num_tasks=3) for name in ("first", "second")]
        jobs = submit_slurm(stages, work_dir, 2, {"partition": "cpu", "account": "us"})
        assert jobs == ["100", "101"]
        assert outputs(work_dir / "first") == outputs(work_dir / "second") == expected(3)
        directives = self._directives(slurm, "100")
        assert directives | {"output": "", "error": ""} == {
            "array": "0-2%2",
            "partition": "cpu",
            "time": "24:00:00",
            "job-name": "first",
            "nodes": "1",
            "cpus-per-task": "1",
            "mem-per-cpu": "2G",
            "account": "us",
            "kill-on-invalid-dep": "yes",
            "requeue": "",
            "output": "",
            "error": "",
        }
        assert "--dependency" not in (slurm / "100.arguments").read_text()
        assert "--dependency=afterok:100" in (slurm / "101.arguments").read_text().splitlines()
        assert len(list(slurm.glob("*.script"))) == 2, "something else was submitted"

        assert submit_slurm(stages, work_dir, 2, {"partition": "cpu"}) == []
        assert run_counts(work_dir / "first", 3) == [1, 1, 1]

    def test_a_failure_stops_what_waits_for_it_and_the_next_call_goes_on(self, slurm, tmp_path, caplog):
        stages = [
            make_stage(tmp_path / "first", {2: "refuse-once"}, num_tasks=3),
            make_stage(tmp_path / "second", name="second", num_tasks=3),
        ]
        jobs = submit_slurm(stages, tmp_path, 2, {"partition": "cpu"})
        assert len(jobs) == 2
        assert run_counts(tmp_path / "first", 3) == [1, 1, 1]
        assert run_counts(tmp_path / "second", 3) == [0, 0, 0]
        error = json.loads((tmp_path / "logs" / "tiny" / "errors" / "00002.json").read_text())
        assert error["message"] == "ConfigError: corpus.txt: task 2 is refused"
        assert "in _refuse" in error["traceback"]

        with caplog.at_level(logging.WARNING):
            again = submit_slurm(stages, tmp_path, 2, {"partition": "cpu"})
        assert any("tiny: task 2 failed before: ConfigError: corpus.txt: task 2" in line for line in caplog.messages)
        assert self._directives(slurm, again[0])["array"] == "0-0%2"
        assert outputs(tmp_path / "first") == outputs(tmp_path / "second") == expected(3)
        assert run_counts(tmp_path / "first", 3) == [1, 1, 2]
        assert not list((tmp_path / "logs" / "tiny" / "errors").iterdir())

    def test_a_finishing_command_runs_behind_all_stages(self, slurm, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        finish = [sys.executable, "-c", "open('finished', 'w').write('all of it')"]
        stage = make_stage(tmp_path / "first", {0: "refuse-once"}, num_tasks=1)
        assert submit_slurm([stage], tmp_path, 2, {"partition": "cpu"}, finish) == ["100", "101"]
        assert not (tmp_path / "finished").exists()
        assert submit_slurm([stage], tmp_path, 2, {"partition": "cpu"}, finish) == ["102", "103"]
        assert (tmp_path / "finished").read_text() == "all of it"
        assert "--dependency=afterok:102" in (slurm / "103.arguments").read_text()
        directives = self._directives(slurm, "103")
        assert "array" not in directives
        assert (directives["job-name"], directives["partition"]) == ("finish", "cpu")

        assert submit_slurm([stage], tmp_path, 2, {"partition": "cpu"}, finish) == ["104"]
        assert "--dependency" not in (slurm / "104.arguments").read_text()

    def test_many_tasks_share_a_few_jobs(self, slurm, tmp_path):
        submit_slurm([make_stage(tmp_path, num_tasks=10)], tmp_path, 1, {"partition": "cpu"})
        assert self._directives(slurm, "100")["array"] == "0-3%1"  # 4 jobs for the one worker, of 3, 3, 3 and 1 tasks
        assert run_counts(tmp_path, 10) == [1] * 10

    def test_options_become_directives(self, slurm, tmp_path):
        options = {"partition": "cpu", "time": "1-12", "cpus-per-task": "3", "mem_per_cpu_gb": "5", "qos": "low"}
        options |= {
            "mail_user": "a@b.c",
            "exclusive": "",
            "env_command": f"export PATH={Path(sys.executable).parent}:$PATH",
        }
        submit_slurm([make_stage(tmp_path, num_tasks=1)], tmp_path, 8, options)
        directives = self._directives(slurm, "100")
        assert directives["time"] == "1-12"
        assert directives["cpus-per-task"] == "3"
        assert directives["mem-per-cpu"] == "5G"
        assert directives["qos"] == "low"
        assert directives["mail-user"] == "a@b.c"
        assert directives["exclusive"] == ""
        script = (slurm / "100.script").read_text()
        assert options["env_command"] in script
        assert "source " not in script
        assert outputs(tmp_path) == expected(1)

    def test_conda_and_venv(self, slurm, tmp_path):
        submit_slurm([make_stage(tmp_path, num_tasks=1)], tmp_path, 1, {"partition": "cpu", "condaenv": "my env"})
        assert "conda activate 'my env'" in (slurm / "100.script").read_text()
        (tmp_path / "venv" / "bin").mkdir(parents=True)
        (tmp_path / "venv" / "bin" / "activate").touch()
        submit_slurm(
            [make_stage(tmp_path, num_tasks=1)], tmp_path, 1, {"partition": "cpu", "venv_path": str(tmp_path / "venv")}
        )
        assert f"source {tmp_path}/venv/bin/activate;" in (slurm / "101.script").read_text()

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({}, "--slurm: partition is missing"),
            ({"time": "soon"}, "--slurm time=soon: not a time of Slurm's"),
            ({"cpus_per_task": "0"}, "--slurm cpus_per_task=0: must be a whole number, 1 or more"),
            ({"mem_per_cpu_gb": "2.5"}, "--slurm mem_per_cpu_gb=2.5: must be a whole number, 1 or more"),
            ({"venv_path": "a", "condaenv": "b"}, "--slurm: venv_path and condaenv exclude each other"),
            ({"venv_path": "/nowhere"}, "--slurm venv_path=/nowhere: there is no /nowhere/bin/activate"),
            ({"array": "0-3"}, "--slurm array=0-3: is set by this command"),
            ({"mem": "3G"}, "--slurm mem=3G: write mem_per_cpu_gb=N instead"),
            ({"a b": "3"}, "--slurm a b=3: not an argument of sbatch"),
        ],
    )
    def test_wrong_options_are_refused(self, slurm, tmp_path, options, message):
        given = {"partition": "cpu", **options} if options else {}
        with pytest.raises(ConfigError, match=re.escape(message)):
            submit_slurm([make_stage(tmp_path, num_tasks=1)], tmp_path, 2, given)
        assert not list(slurm.iterdir())

    def test_options_are_written_as_pairs(self):
        written = ["partition=cpu", "cpus-per-task = 2", "comment=a=b", "exclusive"]
        assert parse_slurm_options(written) == {
            "partition": "cpu",
            "cpus_per_task": "2",
            "comment": "a=b",
            "exclusive": "",
        }
        with pytest.raises(ConfigError, match="--slurm =3: write KEY=VALUE"):
            parse_slurm_options(["=3"])
        with pytest.raises(ConfigError, match="--slurm mail_user=b: mail_user is given twice"):
            parse_slurm_options(["mail-user=a", "mail_user=b"])

    def test_a_refusal_of_sbatch_is_bad_input(self, slurm, tmp_path):
        with pytest.raises(ConfigError, match=r"--slurm: sbatch refused tiny \(exit code 1\)"):
            submit_slurm([make_stage(tmp_path, num_tasks=1)], tmp_path, 2, {"partition": "none"})

    def test_without_sbatch(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PATH", os.fspath(tmp_path))
        with pytest.raises(ConfigError, match="there is no sbatch on PATH"):
            submit_slurm([make_stage(tmp_path, num_tasks=1)], tmp_path, 2, {"partition": "cpu"})
