import errno
import os

import pytest

from bertkit.errors import BertkitError, RequestError
from bertkit.files import refuse_to_overwrite, whole_file, whole_folder


def test_a_file_appears_whole(tmp_path):
    with whole_file(tmp_path / "deep" / "a.txt") as draft:
        draft.write_text("done")
        assert not (tmp_path / "deep" / "a.txt").exists()
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a.txt"]
    assert (tmp_path / "deep" / "a.txt").read_text() == "done"


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(ZeroDivisionError), whole_file(target) as draft:
        draft.write_text("half")
        1 / 0  # noqa: B018
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_full_disk_is_one_sentence(tmp_path):
    with (
        pytest.raises(BertkitError, match="No space left on device; nothing is left of it"),
        whole_folder(tmp_path / "out"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert not list(tmp_path.iterdir())


def test_a_folder_with_files_is_not_touched(tmp_path):
    (tmp_path / "out").mkdir()
    with whole_folder(tmp_path / "out") as draft:  # empty: may be filled
        (draft / "x").write_text("1")
    with pytest.raises(RequestError, match="exists already"), whole_folder(tmp_path / "out"):
        pass
    assert (tmp_path / "out" / "x").read_text() == "1"


def test_an_empty_folder_behind_a_link_is_filled(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with whole_folder(tmp_path / "link") as draft:
        (draft / "x").write_text("1")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "x").read_text() == "1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


def test_the_working_folder_itself(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with whole_folder(".") as draft:
        (draft / "x").write_text("1")
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["x"]


def test_a_place_that_cannot_be_written_is_known_before_the_work(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="file is not a folder"):
        refuse_to_overwrite(tmp_path / "file" / "below" / "deep")


def test_a_file_where_a_folder_should_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="cannot be written"), whole_file(tmp_path / "file" / "below") as draft:
        draft.write_text("never")


def test_outputs_have_ordinary_rights(tmp_path):
    before = os.umask(0o022)
    try:
        with whole_folder(tmp_path / "out") as draft:
            (draft / "x").write_text("1")
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o755
