"""A bundle of every arm of a run, for sites that a study or a person names."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from wardround.bundles.build.assemble import plain_name
from wardround.bundles.build.make import FOLDER, Opened, bundle_from, open_for_bundles
from wardround.core.errors import BundleError, StudyError, as_path, shown
from wardround.core.settings import Factory
from wardround.models import MODELS
from wardround.runs.folder import RunFolder
from wardround.runs.plan import Plan


class Made(NamedTuple):
    """Bundles by arm and site, and why there is none for an arm at a site."""

    folders: dict[tuple[str, str], Path]
    refused: dict[tuple[str, str], str]


def make_bundles(
    run: str | Path,
    *,
    sites: Sequence[str],
    seed: int | None = None,
    out: str | Path | None = None,
    onnx: bool = False,
    models: Mapping[str, Factory] | None = None,
    sources: Mapping[str, Factory] | None = None,
) -> Made:
    """One for each arm and site of a complete run, in `out`/STUDY-ARM-SITE; one that is there already is left as it is.

    An arm from which none can be made does not keep the others from theirs: `refused` says why. The other arguments
    are as `make_bundle` takes them.
    """
    opened = open_for_bundles(run, models, sources)
    return bundles_from(opened, sites, FOLDER if out is None else as_path(out, "--out"), seed=seed, onnx=onnx)


def bundles_from(
    opened: Opened, sites: Sequence[str], out: Path, *, seed: int | None = None, onnx: bool = False
) -> Made:
    made = Made({}, {})
    if not isinstance(sites, list | tuple) or not all(isinstance(site, str) for site in sites):
        raise StudyError("sites", f"expected a list of names, found {shown(sites)}", "Give the names of sites.")
    for arm in opened.results["arms"]:
        for site in sites:
            target = out / plain_name(f"{opened.plan.study.name}-{arm}-{site}")
            try:
                if not (target / "bundle.json").is_file():
                    bundle_from(opened, arm=arm, site=site, seed=seed, out=target, onnx=onnx)
                made.folders[arm, site] = target
            except (StudyError, BundleError) as error:
                made.refused[arm, site] = str(error)
    if made.refused and not made.folders:
        raise BundleError(str(opened.folder.path), "gives no bundle at all", next(iter(made.refused.values())))
    return made


def keep_bundles(plan: Plan, folder: RunFolder) -> None:
    """Those that the study asks for, in the run's own folder. Whatever refuses a bundle is in `refused.json` there."""
    sites = plan.study.evaluation.bundles
    if not sites:
        return
    own = {name: model for name, model in plan.families.models.items() if name not in MODELS}
    opened = Opened(folder, plan, folder.read_json("results.json"), own)
    made = bundles_from(opened, sites, folder.path / "bundles")
    if made.refused:
        told = {f"{arm} at {site}": reason for (arm, site), reason in made.refused.items()}
        folder.write_json("bundles/refused.json", told)
