"""Mistakes that other codebases have made, or that are easily made here. Each must make a test fail.

`python -m tests.mutants [WORD]` applies them one by one to a copy of the package and says which test noticed.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns
from tempfile import TemporaryDirectory

from tests.mutant import TESTS, Mutant
from tests.mutants_of_deployment import MUTANTS as MUTANTS_OF_DEPLOYMENT
from tests.mutants_of_evidence import MUTANTS as MUTANTS_OF_EVIDENCE
from tests.mutants_of_imaging import MUTANTS as MUTANTS_OF_IMAGING
from tests.mutants_of_privacy import MUTANTS as MUTANTS_OF_PRIVACY
from tests.mutants_of_schemas import MUTANTS as MUTANTS_OF_SCHEMAS
from tests.mutants_of_topology import MUTANTS as MUTANTS_OF_TOPOLOGY
from tests.mutants_of_uncertainty import MUTANTS as MUTANTS_OF_UNCERTAINTY

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "wardround"
FAILED, WRONG_PACKAGE = 1, 99  # exit codes: pytest's own, and ours

# Tests that are expected to fail say nothing about a mutant. The package must be the copy, not the installed one.
RUNNER = f"""
import sys
from pathlib import Path
import pytest
import wardround

class WithoutKnownDefects:
    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if item.get_closest_marker("xfail") is None]

if Path(wardround.__file__).resolve().parent != Path(sys.argv[1]).resolve():
    sys.exit({WRONG_PACKAGE})
sys.exit(pytest.main(sys.argv[2:], plugins=[WithoutKnownDefects()]))
"""


MUTANTS = (
    *MUTANTS_OF_EVIDENCE,
    *MUTANTS_OF_IMAGING,
    *MUTANTS_OF_DEPLOYMENT,
    *MUTANTS_OF_PRIVACY,
    *MUTANTS_OF_SCHEMAS,
    *MUTANTS_OF_TOPOLOGY,
    *MUTANTS_OF_UNCERTAINTY,
    Mutant(
        "scaffold drops the memory that it returns",
        "algorithms/scaffold.py",
        'tree.sub(control, memory["control"])}, {"control": control}',
        'tree.sub(control, memory["control"])}, memory',
        "scaffold",
    ),
    Mutant(
        "scaffold's control starts from the weights",
        "algorithms/scaffold.py",
        'return {"control": tree.zeros_like(params)}',
        'return {"control": params}',
        "scaffold",
    ),
    Mutant(
        "scaffold's server control ignores the share of sites",
        "algorithms/scaffold.py",
        'tree.scale(mean["control"], share)',
        'mean["control"]',
        "scaffold",
    ),
    Mutant(
        "scaffold corrects in the wrong direction",
        "algorithms/scaffold.py",
        'tree.sub(shared["control"], memory["control"])',
        'tree.sub(memory["control"], shared["control"])',
        "scaffold",
    ),
    Mutant(
        "scaffold forgets the learning rate in its control",
        "algorithms/scaffold.py",
        "1 / work.lr_sum",
        "1 / work.steps",
        "scaffold",
    ),
    Mutant(
        "scaffold weights sites by rows",
        "algorithms/scaffold.py",
        'weighting="uniform"',
        'weighting="samples"',
        "scaffold",
    ),
    Mutant(
        "fedprox forgets the square",
        "algorithms/fedprox.py",
        'return tree.add_scaled(grad, tree.sub(params, shared["params"]), shared["settings"]["mu"])',
        'away = tree.sub(params, shared["params"])\n'
        '    unit = shared["settings"]["mu"] / tree.squared_norm(away).sqrt().clamp(min=1e-12)\n'
        "    return tree.add_scaled(grad, away, unit)",
        "fedprox or pull or mu",
    ),
    Mutant(
        "fedprox forgets the half",
        "algorithms/fedprox.py",
        'shared["params"]), shared["settings"]["mu"])',
        'shared["params"]), 2 * shared["settings"]["mu"])',
        "fedprox or pull or mu",
    ),
    Mutant(
        "fedprox pushes instead of pulling",
        "algorithms/fedprox.py",
        'shared["params"]), shared["settings"]["mu"])',
        'shared["params"]), -shared["settings"]["mu"])',
        "fedprox or pull or mu",
    ),
    Mutant(
        "adaptive mu moves the wrong way",
        "algorithms/fedprox_adaptive.py",
        "torch.where(rises, old + step, torch.where(lower, (old - step).clamp(min=0), old))",
        "torch.where(rises, (old - step).clamp(min=0), torch.where(lower, old + step, old))",
        "adaptive or mu",
    ),
    Mutant(
        "adaptive mu becomes negative",
        "algorithms/fedprox_adaptive.py",
        "(old - step).clamp(min=0)",
        "(old - step)",
        "adaptive or mu",
    ),
    Mutant(
        "adaptive mu does not wait again after it fell",
        "algorithms/fedprox_adaptive.py",
        '"falls": torch.where(lower, torch.zeros_like(falls), falls)',
        '"falls": falls',
        "adaptive or mu",
    ),
    Mutant(
        "fedavg ignores the server's rate",
        "algorithms/fedavg.py",
        'step = tree.scale(mean["params"], server["settings"]["server_lr"])',
        'step = mean["params"]',
        "fedavg or rate",
    ),
    Mutant(
        "fednova divides by steps instead of the weight of gradients",
        "algorithms/fednova.py",
        'tree.scale(moved, 1 / work.gradient_weight), "work": {"weight": work.gradient_weight}',
        'tree.scale(moved, 1 / work.steps), "work": {"weight": work.steps}',
        "fednova or weight",
    ),
    Mutant(
        "fednova takes one step for the whole round",
        "algorithms/fednova.py",
        'effective = tree.scale(mean["params"], mean["work"]["weight"])',
        'effective = mean["params"]',
        "fednova",
    ),
    Mutant(
        "fedadam's second moment forgets the square",
        "algorithms/fedopt.py",
        "beta2 * v + (1 - beta2) * delta.square()",
        "beta2 * v + (1 - beta2) * delta.abs()",
        "fedopt or fedadam",
    ),
    Mutant(
        "fedyogi's second moment moves the wrong way",
        "algorithms/fedopt.py",
        "torch.sign(v - square)",
        "torch.sign(square - v)",
        "fedopt",
    ),
    Mutant(
        "fedadagrad forgets the past",
        "algorithms/fedopt.py",
        "return v + delta.square()",
        "return delta.square()",
        "fedopt",
    ),
    Mutant(
        "fedopt's second moment starts at zero",
        "algorithms/fedopt.py",
        "torch.full_like(leaf, tau**2)",
        "torch.zeros_like(leaf)",
        "fedopt or fedadam",
    ),
    Mutant(
        "fedopt sends its moments to the sites",
        "algorithms/fedopt.py",
        "return replace(base, init=init, aggregate=aggregate)",
        "return replace(base, init=init, aggregate=aggregate, broadcast=lambda server, site: server)",
        "moments",
    ),
    Mutant(
        "clustered never splits",
        "algorithms/clustered.py",
        "if warm and used < slots and len(places) == slot_of.count(slot):",
        "if warm and used < 0 and len(places) == slot_of.count(slot):",
        "clustered",
    ),
    Mutant(
        "clustered splits a cluster that is not complete",
        "algorithms/clustered.py",
        "if warm and used < slots and len(places) == slot_of.count(slot):",
        "if warm and used < slots:",
        "clustered",
    ),
    Mutant(
        "clustered starts a new cluster from nothing",
        "algorithms/clustered.py",
        "leaf[used] = leaf[slot]",
        "leaf[used] = 0 * leaf[slot]",
        "clustered",
    ),
    Mutant(
        "clustered cuts between the most similar sites",
        "algorithms/clustered.py",
        "(1 - similarity)",
        "(1 + similarity)",
        "clustered or cut",
    ),
    Mutant(
        "local forgets its model after each round",
        "algorithms/local_only.py",
        'return {}, {"params": params}',
        "return {}, memory",
        "local",
    ),
    Mutant(
        "sites count alike instead of by rows",
        "training/intake.py",
        "return float(len(site.train)) if by_rows else 1.0",
        "return 1.0",
        "fedavg",
    ),
    Mutant(
        "sites count by the rows that they visited",
        "training/intake.py",
        "return weight_of(self.trial, assignment.site)",
        "return weight_of(self.trial, assignment.site) * assignment.epochs",
        "fedavg",
    ),
    Mutant(
        "a dropped site keeps its new memory",
        "training/rounds.py",
        "        run, record = close(run, trial, assignments, intake)\n",
        "        late = train_sites(trial, run, [assignment for assignment in assignments if not assignment.counts])\n"
        "        intake.memories |= {one.site.name: outcome.memory for one, outcome in late}\n"
        "        run, record = close(run, trial, assignments, intake)\n",
        "scaffold or dropped",
    ),
    Mutant(
        "a dropped site's update counts",
        "training/rounds.py",
        "[assignment for assignment in assignments if assignment.counts]",
        "assignments",
        "fedavg",
    ),
    Mutant(
        "the share of sites counts those that were dropped",
        "training/intake.py",
        "self.count / len(self.trial.sites))",
        "1.0)",
        "scaffold",
    ),
    Mutant(
        "each arm draws sites of its own",
        "training/trial.py",
        "self.training, len(self.sites), self.batch_seed, round_number, by_chance",
        "self.training, len(self.sites), self.batch_seed + len(self.algorithm.sound_with), round_number, by_chance",
        "two_arms",
    ),
    Mutant(
        "batch norm's statistics are averaged",
        "training/rounds.py",
        "    memories = {**run.memories, **intake.memories}\n",
        "    memories = {**run.memories, **intake.memories}\n"
        "    kept = [memory.buffers for memory in intake.memories.values()]\n"
        "    for one in intake.memories:\n"
        "        mean = {name: torch.stack([b[name] for b in kept]).double().mean(0) for name in kept[0]}\n"
        "        mean = {name: leaf.to(kept[0][name].dtype) for name, leaf in mean.items()}\n"
        "        memories[one] = replace(memories[one], buffers=mean)\n",
        "norm or statistics",
    ),
    Mutant(
        "batch norm's statistics are sent",
        "training/local.py",
        "    update, kept = algorithm.finish(point.params, shared, memory.algorithm, work)\n",
        "    update, kept = algorithm.finish(point.params, shared, memory.algorithm, work)\n"
        '    update = {**update, "buffers": point.buffers} if point.buffers else update\n',
        "norm or statistics or bytes",
    ),
    Mutant(
        "batch norm's statistics start anew in each round",
        "training/local.py",
        "Memory(kept, point.private, point.buffers, protection)",
        "Memory(kept, point.private, memory.buffers, protection)",
        "norm or statistics",
    ),
    Mutant(
        "batch norm writes into the statistics of other sites",
        "models/model.py",
        "        buffers = clone(buffers)  # BatchNorm writes into them\n",
        "",
        "norm or statistics",
    ),
    Mutant(
        "private leaves are forgotten after each round",
        "training/local.py",
        "Memory(kept, point.private, point.buffers, protection)",
        "Memory(kept, memory.private, point.buffers, protection)",
        "private",
    ),
    Mutant(
        "the correction is computed and not used",
        "training/local.py",
        "{**grad, **corrected}",
        "{**corrected, **grad}",
        "fedprox or scaffold",
    ),
    Mutant(
        "the correction is taken where the site began",
        "training/local.py",
        "algorithm.correct({name: grad[name] for name in params}, params, shared, memory)",
        "algorithm.correct({name: grad[name] for name in params}, point.params, shared, memory)",
        "fedprox or mu",
    ),
    Mutant(
        "momentum damps the gradient",
        "training/optimisers.py",
        "torch.add(g, velocity, alpha=momentum)",
        "torch.add((1 - momentum) * g, velocity, alpha=momentum)",
        "momentum or optimisers",
    ),
    Mutant(
        "the weight of gradients ignores momentum",
        "training/optimisers.py",
        "velocity = momentum * velocity + 1",
        "velocity = 1.0",
        "fednova or weight",
    ),
    Mutant(
        "weight decay is forgotten",
        "training/optimisers.py",
        "torch.add(g, leaf, alpha=decay)",
        "g",
        "optimisers",
    ),
    Mutant(
        "adam does not correct its bias",
        "training/optimisers.py",
        "unbias_m, unbias_v = 1 / (1 - beta1**steps), 1 / (1 - beta2**steps)",
        "unbias_m, unbias_v = 1.0, 1.0",
        "optimisers",
    ),
)  # fmt: skip


def copy_of_package(folder: Path) -> Path:
    """Where a copy of the package now stands, ready to be imported from its parent."""
    return Path(copytree(PACKAGE, folder / "wardround", ignore=ignore_patterns("__pycache__")))


def apply(mutant: Mutant, package: Path) -> None:
    path = package / mutant.file
    source = path.read_text(encoding="utf-8")
    if source.count(mutant.old) != 1:
        raise ValueError(f"{mutant.name}: {mutant.file} has {source.count(mutant.old)} times: {mutant.old!r}")
    path.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")


def run_tests(package: Path, select: str = "", where: tuple[str, ...] = TESTS) -> tuple[int, str]:
    """pytest's exit code and output, with this copy of the package in place of the installed one."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(package.parent), str(ROOT)]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    options = ["-x", "-q", "-k", select, "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no"]
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, str(package), *where, *options],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def caught_by(mutant: Mutant, folder: Path) -> str | None:
    """The first test that fails on the mutant, or None when it survives."""
    package = copy_of_package(folder)
    apply(mutant, package)
    code, output = run_tests(package, mutant.tests, mutant.where)
    if code == 0:
        return None
    failed = re.search(r"^FAILED (\S+?::\S+)", output, re.MULTILINE)
    if code != FAILED or failed is None:
        raise RuntimeError(f"{mutant.name}: the tests could not be run\n{output}")
    return failed[1]


def main(word: str = "") -> None:
    """All mutants, or those with a word in their name."""
    survived = 0
    for mutant in (one for one in MUTANTS if word in one.name):
        with TemporaryDirectory() as folder:
            test = caught_by(mutant, Path(folder))
        survived += test is None
        sys.stdout.write(f"{mutant.file:32} {mutant.name:62} {test or 'SURVIVED'}\n")
        sys.stdout.flush()
    sys.exit(1 if survived else 0)


if __name__ == "__main__":
    main(*sys.argv[1:2])
