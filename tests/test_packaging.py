"""What is shipped, and what the two lists of test requirements say."""

from __future__ import annotations

import configparser
import pathlib
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent


def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_pyproject_has_no_project_table_beside_setup_cfg():
    assert "project" not in pyproject()


def test_extra_test_and_dependency_group_test_are_the_same_list():
    extra = setup_cfg()["options.extras_require"]["test"].split("\n")
    assert [line for line in extra if line] == pyproject()["dependency-groups"]["test"]


def test_extra_all_names_every_other_extra_of_the_library():
    extras = setup_cfg()["options.extras_require"]
    (everything,) = extras["all"].split()
    named = everything.removeprefix("pyresil[").removesuffix("]").split(",")
    assert sorted(named) == sorted(set(extras) - {"all", "test"})


def test_an_editable_install_is_a_path_and_no_finder():
    # A finder of setuptools, for a layout that it does not know, is imported at every start of the interpreter.
    assert setup_cfg()["options"]["package_dir"].split() == ["=", "."]


def test_newcomer_commands_stand_in_the_readme():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    for marker in ("<!-- newcomer: run -->", "<!-- newcomer: test -->"):
        following = lines[lines.index(marker) + 1]
        assert following.startswith("```"), f"a fenced block must follow {marker}"
