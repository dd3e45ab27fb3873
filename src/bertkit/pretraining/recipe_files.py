"""The recipes inside the package, by name: `tiny-cpu`, `family/bert`."""

from pathlib import Path

from bertkit.settings import pick

FOLDER = Path(__file__).parents[1] / "recipes"


def recipe_files() -> dict[str, Path]:
    """Name -> file of every recipe inside the package."""
    paths = {str(path.relative_to(FOLDER).with_suffix("").as_posix()): path for path in FOLDER.rglob("*.toml")}
    return dict(sorted(paths.items(), key=lambda item: ("/" in item[0], item[0])))


def find_recipe(recipe: Path | str) -> Path:
    """A file, or a recipe of the package by its name, also written as recipes/NAME.toml."""
    path = Path(recipe)
    if path.exists():
        return path
    name, known = path.as_posix().removeprefix("recipes/").removesuffix(".toml"), recipe_files()
    return known[name] if name in known else pick(known, str(recipe), "file or recipe")


def recipe_summary(path: Path) -> str:
    """What the first line of a recipe says of it, after its command."""
    return path.read_text(encoding="utf-8").partition("\n")[0].partition("run: ")[2]
