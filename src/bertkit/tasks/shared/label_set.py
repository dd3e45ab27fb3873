"""Labels that come with a request: their names, and for each a statement that is true of its texts. Needs no torch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bertkit.errors import RequestError

TEMPLATE = "This text is about {}."  # by default, around the name of a label without a description
MAX_LABELS = 100
MAX_CHARACTERS = 500  # of a statement


@dataclass(frozen=True)
class LabelSet:
    """Labels to choose from. With `multi_label` each is judged by itself, else exactly one is true."""

    names: tuple[str, ...]
    statements: tuple[str, ...]
    multi_label: bool = False

    @classmethod
    def asked(cls, labels: object, template: str | None, *, multi_label: bool | None) -> "LabelSet | None":
        """Those of a request, or None if it has none; then the other two are refused."""
        if labels is not None:
            return cls.read(labels, template, multi_label=bool(multi_label))
        if template is not None or multi_label:
            raise RequestError(
                "template and multi_label go with labels; name the labels to choose from, or leave them out"
            )
        return None

    @classmethod
    def read(cls, labels: object, template: str | None = None, *, multi_label: bool = False) -> "LabelSet":
        """From a list of names, which are put into the template, or from descriptions by name."""
        if isinstance(labels, Mapping):
            if template is not None:
                raise RequestError("template goes with names alone; descriptions are read as they are, so leave it out")
            names, statements = _texts(labels), _texts(labels.values())
        else:
            names = _texts(labels)
            statements = tuple(_filled(TEMPLATE if template is None else template, name) for name in names)
        _check(names, statements, multi_label)
        return cls(names, statements, multi_label)


def _texts(values: object) -> tuple[str, ...]:
    """The names or descriptions, without spaces around them."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise RequestError(
            f"labels={values!r:.60} must be a list, such as ['refund', 'delivery'], or descriptions by name"
        )
    texts = tuple(values)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise RequestError(f"labels[{number}] is {type(text).__name__}, not a str; write each label as a text")
    return tuple(text.strip() for text in texts)


def _filled(template: str, name: str) -> str:
    if not isinstance(template, str) or template.count("{}") != 1:
        raise RequestError(f"template={template!r:.80} must have {{}} once, where the label goes: '{TEMPLATE}'")
    return template.replace("{}", name)


def _check(names: tuple[str, ...], statements: tuple[str, ...], multi_label: bool) -> None:
    """Refuse labels among which nothing can be chosen, that are the same, empty, too many or too long."""
    if not names:
        raise RequestError("labels is empty; name two labels or more, such as ['refund', 'delivery']")
    if len(names) == 1 and not multi_label:
        raise RequestError(
            f"'{names[0]:.60}' is the only label, so every text would get it; add another one, such as 'other', "
            "or judge it by itself with multi_label=True"
        )
    if len(names) > MAX_LABELS:
        raise RequestError(
            f"{len(names):,} labels are over the {MAX_LABELS} of a request; choose among groups of them first"
        )
    for number, (name, statement) in enumerate(zip(names, statements, strict=True)):
        if not name or not has_words(statement):
            what = "is empty" if not name else f"'{name:.60}' is described without a word"
            raise RequestError(f"labels[{number}] {what}; give it a name that says what it means, or leave it out")
        if len(statement) > MAX_CHARACTERS:
            raise RequestError(
                f"label '{name:.60}' has {len(statement):,} characters, over {MAX_CHARACTERS}; shorten it"
            )
    for what, texts in (("label", names), ("description", statements)):
        if len(set(texts)) < len(texts):
            again = next(text for number, text in enumerate(texts) if text in texts[:number])
            raise RequestError(f"the {what} '{again:.60}' is there twice; name each label once")


def has_words(text: str) -> bool:
    """Whether there is a letter or a digit to judge a text by."""
    return any(map(str.isalnum, text))
