"""What a run used, and whom to cite for it."""

# ruff: noqa: E501 - a reference is one line

from wardround.report.evidence import Evidence

ALGORITHMS = {
    "fedavg": "McMahan et al. Communication-efficient learning of deep networks from decentralized data. AISTATS 2017. arXiv:1602.05629",
    "fedprox": "Li et al. Federated optimization in heterogeneous networks. MLSys 2020. arXiv:1812.06127",
    "fedprox-adaptive": "Li et al. Federated optimization in heterogeneous networks. MLSys 2020, section 5.3. arXiv:1812.06127",
    "scaffold": "Karimireddy et al. SCAFFOLD: stochastic controlled averaging for federated learning. ICML 2020. arXiv:1910.06378",
    "fednova": "Wang et al. Tackling the objective inconsistency problem in heterogeneous federated optimization. NeurIPS 2020. arXiv:2007.07481",
    "fedadam": "Reddi et al. Adaptive federated optimization. ICLR 2021. arXiv:2003.00295",
    "fedyogi": "Reddi et al. Adaptive federated optimization. ICLR 2021. arXiv:2003.00295",
    "fedadagrad": "Reddi et al. Adaptive federated optimization. ICLR 2021. arXiv:2003.00295",
    "clustered": "Sattler, Müller, Samek. Clustered federated learning. IEEE TNNLS 2020. arXiv:1910.01991",
}
SOURCES = {
    "heart": "Janosi, Steinbrunn, Pfisterer, Detrano. Heart Disease. UCI Machine Learning Repository 1989. doi:10.24432/C52P4X (CC BY 4.0)",
    "fashion-mnist": "Xiao, Rasul, Vollgraf. Fashion-MNIST. 2017. arXiv:1708.07747",
    "chest-xray": "Wang et al. ChestX-ray8: hospital-scale chest X-ray database and benchmarks. CVPR 2017. arXiv:1705.02315",
    "phantom": "Wang et al. ChestX-ray8: hospital-scale chest X-ray database and benchmarks. CVPR 2017 (how often findings come together). arXiv:1705.02315",
    "synthetic": "Li et al. Federated optimization in heterogeneous networks. MLSys 2020 (the synthetic data). arXiv:1812.06127",
}
PARTITIONS = {
    "dirichlet": "Yurochkin et al. Bayesian nonparametric federated learning of neural networks. ICML 2019. arXiv:1905.12022",
}
MODELS = {
    "resnet": "He, Zhang, Ren, Sun. Deep residual learning for image recognition. CVPR 2016. arXiv:1512.03385",
    "residual": "He, Zhang, Ren, Sun. Deep residual learning for image recognition. CVPR 2016. arXiv:1512.03385",
    "densenet": "Huang, Liu, van der Maaten, Weinberger. Densely connected convolutional networks. CVPR 2017. arXiv:1608.06993",
}
STATISTICS = {
    "corrected": "Nadeau, Bengio. Inference for the generalization error. Machine Learning 52, 2003",
    "holm": "Holm. A simple sequentially rejective multiple test procedure. Scandinavian Journal of Statistics 6, 1979",
    "bootstrap": "Efron. Better bootstrap confidence intervals. Journal of the American Statistical Association 82, 1987",
    "percentile": "Efron, Tibshirani. An introduction to the bootstrap. Chapman and Hall 1993",
    "decision": "Vickers, Elkin. Decision curve analysis. Medical Decision Making 26, 2006",
    "calibration": "Van Calster et al. Calibration: the Achilles heel of predictive analytics. BMC Medicine 17, 2019",
    "mmd": "Gretton et al. A kernel two-sample test. Journal of Machine Learning Research 13, 2012",
    "tripod": "Collins et al. TRIPOD+AI statement. BMJ 385, 2024, e078378",
}


def citations(evidence: Evidence) -> list[str]:
    results = evidence.results
    used = [ALGORITHMS.get(arm["algorithm"]["name"]) for arm in results["arms"].values()]
    used += [SOURCES.get(described["data"]["name"]) for described in results["sites"]]
    used += [PARTITIONS.get(described["partition"]["name"]) for described in results["sites"]]
    used.append(MODELS.get(evidence.study["model"]["kind"]))
    if any(variant["method"].startswith("corrected") for variant in results["variants"].values()):
        used.append(STATISTICS["corrected"])
    if results["tests"]:
        used += [STATISTICS["holm"], STATISTICS["percentile" if evidence.seeds == 1 else "bootstrap"]]
    if any(arm["calibration"] for arm in results["arms"].values()):
        used += [STATISTICS["calibration"], STATISTICS["decision"]]
    if any(described["heterogeneity"]["mmd"] is not None for described in results["sites"]):
        used.append(STATISTICS["mmd"])
    used.append(STATISTICS["tripod"])
    return list(dict.fromkeys(text for text in used if text))
