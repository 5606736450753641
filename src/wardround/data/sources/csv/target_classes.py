"""The words of a target and the classes that they mean, so that a class is the same at every hospital.

A hospital may declare what its own words mean (`labels`). Otherwise its words must be the study's classes, or one of
the known pairs of words. What is not known is an error, never a guess: a target whose meaning is reversed at one
hospital would train without any warning. Probable typos, and numbers that are probably a count or a score, are refused
where the study declares neither `classes` nor, at that hospital, `labels`.

Values are never shown. An error names a word only if the study declares it or it is one of the known pairs; of any
other it gives the place, because it may be a patient's name in a wrong column.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from wardround.core.errors import DataError, StudyError, suggest
from wardround.core.notices import Notice
from wardround.data.sources.csv.columns import FEW_LEVELS, normalized_levels, spelling
from wardround.data.text_table import MISSING_WORDS, Cells, to_number

RARE = 0.1  # of the rows of the word that it is close to
MOST_NUMBERS = 4  # different ones that may be names of classes, as grades are; more are a count or a measurement
MOST_LINES = 5  # that are named
ROMAN = re.compile(r"[ivx]+")


def misspelling(counts: Mapping[str, int]) -> tuple[str, str] | None:
    """The rarest word that is close to a more frequent one, and that one. `counts` are the rows of each word.

    Two words are close where they differ in accents, spaces and signs alone; or, if one has at most a tenth of the
    other's rows, by one letter that is wrong, missing, too many, or changed places with its neighbour. Words with
    digits and Roman numbers are no misspellings of each other: grade 2 is not grade 3.
    """
    by_rows = sorted(counts, key=lambda word: (counts[word], word))
    for place, word in enumerate(by_rows):
        for other in reversed(by_rows[place + 1 :]):
            near = counts[word] <= RARE * counts[other] and _are_names(word, other)
            if _characters(word) == _characters(other) or (
                near and differ_by_one_typo(_characters(word), _characters(other))
            ):
                return word, other
    return None


def differ_by_one_typo(word: str, other: str) -> bool:
    """Damerau and Levenshtein's distance is 1."""
    short, long = sorted((word, other), key=len)
    if len(long) - len(short) > 1 or short == long:
        return False
    start = next((i for i, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short))
    rest, longer = short[start:], long[start:]
    if len(short) < len(long):
        return rest == longer[1:]
    swapped = rest[:2] == longer[1::-1] and rest[2:] == longer[2:]
    return rest[1:] == longer[1:] or swapped


def _characters(word: str) -> str:
    """Without accents, spaces and signs."""
    plain = unicodedata.normalize("NFKD", word).casefold()
    return "".join(sign for sign in plain if sign.isalnum())


def _are_names(*words: str) -> bool:
    return all(len(word) > 1 and not any(map(str.isdigit, word)) for word in words) and not all(
        ROMAN.fullmatch(word) for word in words
    )


LONGEST_CLASS_NAME = 40
# (negative, positive): a word stands in one pair only, so that it has one meaning
PAIRS = (
    ("no", "yes"),
    ("n", "y"),
    ("false", "true"),
    ("0", "1"),
    ("negative", "positive"),
    ("neg", "pos"),
    ("absent", "present"),
    ("alive", "dead"),
    ("survived", "died"),
    ("healthy", "sick"),
    ("normal", "abnormal"),
    ("benign", "malignant"),
    ("control", "case"),
    ("nein", "ja"),
    ("non", "oui"),
)
MEANINGS = {word: (pair, label) for pair in PAIRS for label, word in enumerate(pair)}

Order = list[tuple[str, ...]]  # the words of each class, by class number; the first that occurs names it


@dataclass(frozen=True)
class DeclaredClasses:
    positive: str | None
    classes: tuple[str, ...] | None
    labels: Mapping[str, Mapping[str, str]]  # by hospital: from its word to the class

    @property
    def words(self) -> dict[str, str]:
        """All that the study names, by how they are compared."""
        texts = [*(self.classes or ()), self.positive or ""]
        texts += [text for labels in self.labels.values() for pair in labels.items() for text in pair]
        return {normalized(text): text.strip() for text in texts}

    def check(self) -> None:
        """As far as that is possible before any file is read."""
        if self.classes is not None:
            self._check_classes(self.classes)
        for site, labels in self.labels.items():
            self._check_labels(labels, f"data: labels: {site}")

    def _check_classes(self, classes: tuple[str, ...]) -> None:
        if len(classes) < 2 or len(set(map(normalized, classes))) < len(classes):
            problem = "must list two or more different classes"
            raise StudyError("data: classes", problem, "Name each class once; of two, the second is the positive one.")
        if len(classes) > 2 and self.positive is not None:
            problem = f"there are {len(classes)} classes, and none of them is the positive one"
            raise StudyError("data: positive", problem, "Leave `positive` out, or list two `classes`.")
        if len(classes) == 2 and self.positive is not None and normalized(self.positive) != normalized(classes[1]):
            problem = f"{self.positive!r} is not the second of the two `classes`, which is the positive one"
            raise StudyError("data: positive", problem, "Leave `positive` out, and write the positive class second.")

    def _check_labels(self, labels: Mapping[str, str], where: str) -> None:
        if not labels:
            raise StudyError(where, "no word is named", 'Write a line `"word" = "class"` for each word in the file.')
        known = {normalized(name): name for name in self.classes or labels.values()}
        meanings: dict[str, str] = {}
        for word, name in labels.items():
            if word.strip().lower() in MISSING_WORDS:
                problem = f"{word!r} counts as a gap when a file is read, so it can be no class"
                raise StudyError(where, problem, "Write another word for it in the file.")
            if normalized(name) not in known:
                problem = f"{name!r} is not one of the study's classes"
                raise StudyError(f"{where}: {word}", problem, suggest(name, known.values(), "Classes"))
            if meanings.setdefault(normalized(word), normalized(name)) != normalized(name):
                raise StudyError(f"{where}: {word}", "this word is given two classes", "Name it once.")


@dataclass(frozen=True)
class Target:
    classes: tuple[str, ...]  # for two, the second is the positive one
    numbers: dict[str, np.ndarray]  # by hospital: the class of each row
    vocabulary: dict[str, dict[str, str]]  # by hospital: word in lower case -> class
    notices: list[Notice]


def normalized(text: str) -> str:
    """How words are compared: without case, and with one spelling per number."""
    return spelling(text.strip(), to_number(text)).casefold()


def read_target(names: Mapping[str, str], sites: Mapping[str, Cells], declared: DeclaredClasses) -> Target:
    """`names` are the hospitals' names for their target."""
    where = _place(names)
    words = {site: [word.casefold() for word in normalized_levels(cells)] for site, cells in sites.items()}
    spellings = _spellings(sites, words)
    _refuse_measurements_and_free_text(where, sites, spellings)
    namer = _WordNamer(names, sites, words, declared)
    meanings = {site: _meanings(site, namer) for site in sites}
    spellings = {
        **{normalized(name): name.strip() for labels in declared.labels.values() for name in labels.values()},
        **{word: spellings[word] for site in sites if site not in declared.labels for word in words[site]},
    }
    order, notices = _order(where, meanings, spellings, namer)
    number = {word: label for label, group in enumerate(order) for word in group}
    classes = _class_names(order, spellings, declared)
    return Target(
        classes,
        {s: c.spread([number[meanings[s][w]] for w in words[s]], None).astype(np.int64) for s, c in sites.items()},
        {site: {word: classes[number[name]] for word, name in own.items()} for site, own in meanings.items()},
        notices,
    )


def _spellings(sites: Mapping[str, Cells], words: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Of each word, the first spelling in the files."""
    spellings: dict[str, str] = {}
    for site, cells in sites.items():
        for word, level in zip(words[site], cells.levels, strict=True):
            spellings.setdefault(word, level if level.casefold() == word else word)
    return spellings


def _class_names(order: Order, spellings: Mapping[str, str], declared: DeclaredClasses) -> tuple[str, ...]:
    if declared.classes is not None:
        return tuple(name.strip() for name in declared.classes)
    return tuple(next((spellings[word] for word in group if word in spellings), group[0]) for group in order)


def _place(names: Mapping[str, str]) -> str:
    if len(set(names.values())) == 1:
        return f"target {next(iter(names.values()))!r}"
    return "target (" + ", ".join(f"{name!r} at {site!r}" for site, name in names.items()) + ")"


@dataclass(frozen=True)
class _WordNamer:
    """How errors name the words of a target."""

    columns: Mapping[str, str]  # by hospital: its name for the target
    sites: Mapping[str, Cells]
    words: Mapping[str, Sequence[str]]  # by hospital: that of each level
    declared: DeclaredClasses

    def listed(self, words: Iterable[str], at: str | None = None) -> str:
        """Words of the study or of the known pairs, and the number and place of the others, at one hospital or all."""
        public = {word: word for word in MEANINGS} | self.declared.words
        words = set(words)
        shown = sorted(repr(public[word]) for word in words if word in public)
        if others := {word for word in words if word not in public}:
            place = self._place(others, list(self.sites) if at is None else [at])
            shown.append(f"{len(others)} that the study does not declare ({place})")
        return ", ".join(shown)

    def _place(self, words: set[str], sites: Iterable[str]) -> str:
        for site in sites:
            chosen = np.array([word in words for word in self.words[site]], dtype=bool)
            if chosen.any():
                return f"the first at {site!r} in {self.sites[site].count_and_place(chosen)[1]}"
        return "in no file"

    def by_site(self, words: Mapping[str, Iterable[str]]) -> str:
        return "; ".join(f"{site!r} has {self.listed(own, site)}" for site, own in words.items())

    def lines_of(self, word: str, sites: Iterable[str]) -> str:
        """In which lines of which files a word stands: what a person needs who must not be shown the word."""
        places = []
        for site in [site for site in sites if word in self.words[site]]:
            cells, chosen = self.sites[site], np.array([other == word for other in self.words[site]])
            lines = cells.lines[np.append(chosen, False)[cells.codes]].tolist()
            more = f" and {len(lines) - MOST_LINES} more" if len(lines) > MOST_LINES else ""
            places.append(f"{cells.places(lines[:MOST_LINES], more)} at {site!r}")
        return "; ".join(places)


def _meanings(site: str, namer: _WordNamer) -> dict[str, str]:
    """Of every word that a hospital has or declares, the word that the study has for it."""
    words, labels = namer.words[site], namer.declared.labels.get(site)
    if labels is None:
        return {word: word for word in words}
    meanings = {normalized(word): normalized(name) for word, name in labels.items()}
    if unknown := [word for word in words if word not in meanings]:
        problem = f"words in its target column that `labels` does not name: {namer.listed(unknown, site)}"
        known = _listed(dict.fromkeys(namer.declared.classes or labels.values()))
        raise DataError(f"hospital {site!r}", problem, f"Add a line for each under `labels`. The classes are: {known}.")
    return meanings


def _refuse_measurements_and_free_text(where: str, sites: Mapping[str, Cells], spellings: Mapping[str, str]) -> None:
    levels = np.concatenate([cells.numbers for cells in sites.values()])
    numbers = levels[~np.isnan(levels)]
    present, distinct = sum(cells.present for cells in sites.values()), len(spellings)
    remedy = "Choose a column with a few classes, or add one, such as a yes/no column made with a threshold."
    number = 'To predict the number itself, write `task = "regression"`, or `task = "count"` for a number of events. '
    many_numbers = distinct > FEW_LEVELS and 2 * len(numbers) > len(levels)
    if many_numbers or np.isinf(numbers).any() or np.any(numbers != np.round(numbers)):
        problem = f"looks like a measurement, not a class ({distinct} different values)"
        raise DataError(where, problem, number + remedy)
    # A name or a remark must not pass for a class, because class names are shown.
    repeated_too_rarely = len(spellings.keys() - MEANINGS.keys()) > 2 and 2 * distinct > present
    if distinct > FEW_LEVELS or repeated_too_rarely or max(map(len, spellings)) > LONGEST_CLASS_NAME:
        raise DataError(where, f"looks like free text, not a class ({distinct} different values)", remedy)


def _order(
    where: str, meanings: Mapping[str, Mapping[str, str]], spellings: Mapping[str, str], namer: _WordNamer
) -> tuple[Order, list[Notice]]:
    words = {site: list(dict.fromkeys(own.values())) for site, own in meanings.items()}
    positive = None if namer.declared.positive is None else normalized(namer.declared.positive)
    if namer.declared.classes is not None:
        return _as_listed(where, words, spellings, namer.declared.classes, namer), []
    if all(word in MEANINGS for word in spellings):
        return _known_pairs(where, words, spellings, positive, namer)
    if positive is not None:
        return _declared_pair(where, spellings, positive, namer), []
    return _multiple_classes(where, words, spellings, namer), []


def _as_listed(
    where: str,
    words: Mapping[str, Sequence[str]],
    spellings: Mapping[str, str],
    listed: Sequence[str],
    namer: _WordNamer,
) -> Order:
    order: Order = [(normalized(name),) for name in listed]
    if unknown := spellings.keys() - {word for group in order for word in group}:
        strange = next(site for site, own in words.items() if unknown & set(own))
        problem = (
            f"{len(unknown)} classes are not in the study's list: {namer.listed(unknown)}. "
            f"The study has {_listed(listed)}; {namer.by_site(words)}"
        )
        remedy = (
            f'Say what they mean, with a line `"word" = "class"` for each under [data.labels.{strange}] (in a site '
            "file: [data.labels]); or correct the files, or `classes`."
        )
        raise DataError(where, problem, remedy)
    return order


def _known_pairs(
    where: str,
    words: Mapping[str, Sequence[str]],
    spellings: Mapping[str, str],
    positive: str | None,
    namer: _WordNamer,
) -> tuple[Order, list[Notice]]:
    used = {site: list(dict.fromkeys(MEANINGS[word][0] for word in own)) for site, own in words.items()}
    pairs = list(dict.fromkeys(chain.from_iterable(used.values())))
    if positive is not None and not any(positive in pair for pair in pairs):
        raise _no_such_class(where, namer.listed(spellings))
    # The classes are named in the words of `positive`, or else of a pair of which both words occur.
    pairs.sort(key=lambda pair: (positive not in pair, not all(word in spellings for word in pair)))
    negatives, positives = zip(*pairs, strict=True)
    notices = []
    if len(pairs) > 1:
        by_site = {site: " and ".join(f"{b}/{a}" for a, b in used[site]) for site in used}
        columns = tuple(dict.fromkeys(namer.columns.values()))
        notices.append(Notice("target-words", "warning", columns=columns, other_sites=tuple(used), details=by_site))
    return [positives, negatives] if positive in negatives else [negatives, positives], notices


def _declared_pair(where: str, spellings: Mapping[str, str], positive: str, namer: _WordNamer) -> Order:
    if positive not in spellings:
        raise _no_such_class(where, namer.listed(spellings))
    others = [word for word in spellings if word != positive]
    if len(others) > 1:
        raise DataError(
            where,
            f"`positive` is given, but there are {len(others)} other classes: {namer.listed(others)}",
            "Write one word for all rows that are not positive, or say under `labels` what each hospital's words mean; "
            "for three or more classes, leave `positive` out.",
        )
    return [(others[0] if others else f"not {spellings[positive]}",), (positive,)]


def _multiple_classes(
    where: str, words: Mapping[str, Sequence[str]], spellings: Mapping[str, str], namer: _WordNamer
) -> Order:
    if len(spellings) < 3:
        problem = f"it is not known which class is the positive one: {namer.listed(spellings)}"
        raise DataError(where, problem, 'Write `positive = "..."` with one of the words in this column.')
    if not any(set(own) == set(spellings) for own in words.values()):
        problem = (
            "the labels differ between the hospitals, and none has them all, so they may differ in meaning: "
            f"{namer.by_site(words)}"
        )
        remedy = (
            "Agree on one word for each class, or say under `labels` what each hospital's words mean; "
            "if they mean the same everywhere, list them: `classes = [...]`."
        )
        raise DataError(where, problem, remedy)
    numeric = all(re.fullmatch("-?[0-9]+", word) for word in spellings)
    if numeric and len(spellings) > MOST_NUMBERS:
        problem = (
            f"{len(spellings)} different numbers would be {len(spellings)} classes without an order: "
            "it looks like a count or a score"
        )
        remedy = (
            'To predict the number itself, write `task = "count"` or `task = "regression"`. Or make a column of two '
            "classes with a threshold, or join the numbers: [data.labels.HOSPITAL] with "
            '`"0" = "none"`, `"1" = "some"` and so on for each. If they are names of classes: '
            '`classes = ["1", "2", ...]`.'
        )
        raise DataError(where, problem, remedy)
    _refuse_misspellings(where, namer)
    return [(word,) for word in (sorted(spellings, key=int) if numeric else sorted(spellings))]


def _refuse_misspellings(where: str, namer: _WordNamer) -> None:
    """Of words that nobody declares: at a hospital with `labels`, all are declared."""
    undeclared = [site for site in namer.sites if site not in namer.declared.labels]
    rows = Counter(
        namer.words[site][code] for site in undeclared for code in namer.sites[site].codes.tolist() if code >= 0
    )
    pair = misspelling(rows)
    if pair is None:
        return
    word, other = pair
    intended = repr(other) if other in MEANINGS else f"another word of {rows[other]} rows"
    how = "in accents, spaces or signs" if _characters(word) == _characters(other) else "by one letter"
    first = next(site for site in undeclared if word in namer.words[site])
    lines = namer.lines_of(word, undeclared)
    problem = f"a word of {rows[word]} of {rows.total()} rows differs from {intended} {how} alone ({lines})"
    remedy = (
        f"If it is misspelt, correct the file, or say what each word means: [data.labels.{first}] with a line "
        '`"word" = "class"` for each. If it is a class of its own, list all of them: `classes = [...]`.'
    )
    raise DataError(where, problem, remedy)


def _no_such_class(where: str, known: str) -> DataError:
    return DataError(where, "`positive` is not one of the classes", f"The classes are: {known}.")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(repr(name) for name in names))
