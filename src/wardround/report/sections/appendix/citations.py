"""What a run used, and whom to cite for it."""

# ruff: noqa: E501 - a reference is one line

from wardround.report.evidence import Evidence
from wardround.report.section import Section

TOPOLOGIES = {
    "hierarchical": "Liu, Zhang, Song, Letaief. Client-edge-cloud hierarchical federated learning. IEEE ICC 2020. arXiv:1905.06641",
    "vertical": "Vepakomma, Gupta, Swedish, Raskar. Split learning for health: distributed deep learning without sharing raw patient data. 2018. arXiv:1812.00564",
}
UNCERTAINTY = {
    "dropout": "Gal, Ghahramani. Dropout as a Bayesian approximation: representing model uncertainty in deep learning. ICML 2016. arXiv:1506.02142",
    "laplace": "Daxberger et al. Laplace redux: effortless Bayesian deep learning. NeurIPS 2021. arXiv:2106.14806",
    "swag": "Maddox, Garipov, Izmailov, Vetrov, Wilson. A simple baseline for Bayesian uncertainty in deep learning. NeurIPS 2019. arXiv:1902.02476",
    "ensemble": "Lakshminarayanan, Pritzel, Blundell. Simple and scalable predictive uncertainty estimation using deep ensembles. NeurIPS 2017. arXiv:1612.01474",
    "temperature": "Guo, Pleiss, Sun, Weinberger. On calibration of modern neural networks. ICML 2017. arXiv:1706.04599",
    "ece": "Nixon, Dusenberry, Zhang, Jerfel, Tran. Measuring calibration in deep learning. CVPR Workshops 2019. arXiv:1904.01685",
    "sets": "Vovk. Conditional validity of inductive conformal predictors. ACML 2012. arXiv:1209.2673",
}
PRIVACY = {
    "example": "Abadi et al. Deep learning with differential privacy. CCS 2016. arXiv:1607.00133",
    "site": "McMahan, Ramage, Talwar, Zhang. Learning differentially private recurrent language models. ICLR 2018. arXiv:1710.06963",
    "adaptive": "Andrew, Thakkar, McMahan, Ramaswamy. Differentially private learning with adaptive clipping. NeurIPS 2021. arXiv:1905.03871",
    "accountant": "Doroshenko, Ghazi, Kamath, Kumar, Manurangsi. Connect the dots: tighter discrete approximations of privacy loss distributions. PoPETs 2022. arXiv:2207.04380",
    "secure_sum": "Bonawitz et al. Practical secure aggregation for privacy-preserving machine learning. CCS 2017. IACR ePrint 2017/281",
}
ATTACKS = {
    "canary": "Nasr et al. Adversary instantiation: lower bounds for differentially private machine learning. S&P 2021. arXiv:2101.04535",
    "membership": "Carlini et al. Membership inference attacks from first principles. S&P 2022. arXiv:2112.03570",
    "inversion": "Geiping, Bauermeister, Dröge, Moeller. Inverting gradients: how easy is it to break privacy in federated learning? NeurIPS 2020. arXiv:2003.14053",
}
STROBE = "von Elm et al. The STROBE statement: guidelines for reporting observational studies. Lancet 370, 2007"
TRIPOD = "Collins et al. TRIPOD+AI statement. BMJ 385, 2024, e078378"
STATISTICS = {
    "corrected": "Nadeau, Bengio. Inference for the generalization error. Machine Learning 52, 2003",
    "holm": "Holm. A simple sequentially rejective multiple test procedure. Scandinavian Journal of Statistics 6, 1979",
    "bootstrap": "Efron. Better bootstrap confidence intervals. Journal of the American Statistical Association 82, 1987",
    "percentile": "Efron, Tibshirani. An introduction to the bootstrap. Chapman and Hall 1993",
    "decision": "Vickers, Elkin. Decision curve analysis. Medical Decision Making 26, 2006",
    "calibration": "Van Calster et al. Calibration: the Achilles heel of predictive analytics. BMC Medicine 17, 2019",
    "mmd": "Gretton et al. A kernel two-sample test. Journal of Machine Learning Research 13, 2012",
}


def citations(evidence: Evidence) -> list[str]:
    results = evidence.results
    used: list[str | None] = list(results.get("citations", ()))  # of algorithms, sources, partitions and models
    used += [TOPOLOGIES.get((arm.get("topology") or {}).get("kind", "")) for arm in results["arms"].values()]
    methods = [arm["uncertainty"]["method"] for arm in results["arms"].values() if arm.get("uncertainty")]
    used += [UNCERTAINTY.get(name) for name in (*methods, *(("temperature", "ece", "sets") if methods else ()))]
    used += [STATISTICS[name] for name in _statistics(evidence)]
    used += [text for name, text in ATTACKS.items() if name in (evidence.attack or {})]
    used += [PRIVACY[name] for name in _protections(evidence)]
    used += _reporting(evidence)
    return list(dict.fromkeys(text for text in used if text))


def _reporting(evidence: Evidence) -> list[str]:
    """Of analyses, and the statements on how to report what was done."""
    analyses = evidence.results.get("analyses") or {}
    used = [text for own in analyses.values() for text in own.get("citations", ())]
    return [*used, *([STROBE] if analyses else []), *([TRIPOD] if evidence.results["arms"] else [])]


def _statistics(evidence: Evidence) -> list[str]:
    results, used = evidence.results, []
    if any(variant["method"].startswith("corrected") for variant in results["variants"].values()):
        used.append("corrected")
    if results["tests"]:
        used += ["holm", "percentile" if evidence.seeds == 1 else "bootstrap"]
    if any(arm["calibration"] for arm in results["arms"].values()):
        used.append("calibration")
    if any(arm["decision_curve"] for arm in results["arms"].values()):
        used.append("decision")
    if any(described["heterogeneity"]["mmd"] is not None for described in results["sites"]):
        used.append("mmd")
    return used


def _protections(evidence: Evidence) -> list[str]:
    arms = evidence.protected_arms.values()
    used = [name for name in ("example", "site", "secure_sum") if any(arm[name] for arm in arms)]
    if any((arm["example"] or {}).get("adaptive") for arm in arms):
        used.append("adaptive")
    return [*used, "accountant"] if {"example", "site"} & set(used) else used


PAGE = """
<section id="methods"><h2>Methods, and how to cite</h2>
<p>Please cite the software with the study's hash: wardround {{ environment.versions.wardround }},
study {{ study.name }}, {{ results.study.hash }}. What this run used:</p>
<ol class="references">{% for text in citations %}<li>{{ text }}</li>{% endfor %}</ol>
<p class="meta">Versions:
{% for name, version in environment.versions.items() %}
{{ name }} {{ version }}{{ ", " if not loop.last }}{% endfor %}.</p>
</section>"""
SECTION = Section(PAGE, "methods", "Methods", {"citations": citations})
