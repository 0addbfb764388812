"""Golden conversations of tests that are run by pytest within pytest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider import LLM
from outrider.native.library import loaded
from outrider.recording.records import read_record
from outrider_server.replaying import replay
from tests.model_folders import model_folder
from tests.server.live import Live

pytest_plugins = ["pytester"]

IN_PROCESS = """
    def test_talk(golden):
        first = golden.llm.generate({prompt!r}, max_tokens=8, temperature=1, ignore_eos=True)
        again = golden.llm.generate({prompt!r}, max_tokens=8, temperature=1, ignore_eos=True)
        assert first.token_ids != again.token_ids  # drawn with seeds of their own
        list(golden.llm.stream("two " + first.text, max_tokens=6, ignore_eos=True))
"""
BY_URL = """
    import concurrent.futures, json, urllib.request

    def ask(url, **body):
        data = json.dumps({"model": "any", "max_tokens": 8, "ignore_eos": True, **body}).encode()
        request = urllib.request.Request(url + "/completions", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return answer.read()

    def test_agent(golden):
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda n: ask(golden.url, prompt=f"question {n % 3}"), range(6)))
        assert b"[DONE]" in ask(golden.url, prompt="streamed", stream=True)
"""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("golden") / "tiny", max_position_embeddings=512)


def run(pytester: pytest.Pytester, folder: Path, *words: str, options: str = "draft='ngram'") -> pytest.RunResult:
    pytester.makeconftest(
        f"""
        import pytest
        @pytest.fixture(scope="session")
        def golden_options():
            return dict(threads=1, {options})
        """
    )
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", f"--golden-model={folder}", *words)


def golden_file(pytester: pytest.Pytester) -> Path:
    (file,) = (pytester.path / "golden").rglob("*.jsonl")
    return file


def plant(file: Path, line: int, place: int) -> None:
    """Another token at a place of a golden answer."""
    lines = [json.loads(text) for text in file.read_text().splitlines()]
    lines[line]["output"][place] = (lines[line]["output"][place] + 1) % 64
    file.write_text("".join(json.dumps(one) + "\n" for one in lines))


def test_conversations_are_written_on_update_and_equal_with_other_drafts_and_threads(
    pytester: pytest.Pytester, folder: Path
) -> None:
    pytester.makepyfile(test_agent=IN_PROCESS.format(prompt="one two one"))
    first = run(pytester, folder)
    first.assert_outcomes(failed=1)
    first.stdout.fnmatch_lines(["*there are no golden conversations in *--golden-update writes them*"])
    run(pytester, folder, "--golden-update").assert_outcomes(passed=1)
    file = golden_file(pytester)
    assert file.relative_to(pytester.path) == Path("golden/test_agent/test_talk.jsonl")
    written = file.read_text()
    run(pytester, folder, "--golden-update", options="draft='none', kv_cache='paged'").assert_outcomes(passed=1)
    assert file.read_text() == written  # nothing differs, so nothing is written
    recorded = list(read_record(file))
    assert recorded[2].prompt_text == "two " + recorded[0].text
    with LLM(str(folder), draft="none", threads=2) as plain:  # a golden file is a record
        assert [one.difference for one in replay(plain, recorded)] == [None] * 3


def test_the_first_token_that_differs_is_named_with_both_distributions(pytester: pytest.Pytester, folder: Path) -> None:
    pytester.makepyfile(test_agent=IN_PROCESS.format(prompt="one two one"))
    run(pytester, folder, "--golden-update", options="draft='none'")
    plant(golden_file(pytester), 2, 3)
    result = run(pytester, folder)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*conversation 3: token 4, in step 4, differs: * became *",
            "*golden log-probabilities: * -*.*, *",
            "*log-probabilities here:   * -*.*, *",
            "*golden text: *",
            "*text here: *",
            "*golden file: *test_talk.jsonl*",
        ]
    )
    run(pytester, folder, "--golden-update").assert_outcomes(passed=1)
    file = golden_file(pytester)
    file.write_text(file.read_text()[:-40])
    run(pytester, folder).stdout.fnmatch_lines(["*test_talk.jsonl, line 3: it is cut off: remove the line*"])


@pytest.mark.slow
def test_conversations_are_equal_on_another_instruction_set_and_number_of_threads(
    pytester: pytest.Pytester, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_agent=IN_PROCESS.format(prompt="one two one"))
    run(pytester, folder, "--golden-update")
    pytester.makeconftest(
        """
        import pytest
        from outrider.native.library import default_isa
        @pytest.fixture(scope="session")
        def golden_options():
            assert default_isa() == "portable"
            return dict(threads=2)
        """
    )
    found = loaded()
    assert found is not None
    monkeypatch.setenv("OUTRIDER_CACHE", str(found.path.parents[1]))  # a home of its own has no compiled library
    monkeypatch.setenv("OUTRIDER_ISA", "portable")
    command = ("-p", "no:cacheprovider", f"--golden-model={folder}")
    pytester.runpytest_subprocess(*command).assert_outcomes(passed=1)


@pytest.mark.slow
def test_another_prompt_and_another_number_of_conversations_are_named(pytester: pytest.Pytester, folder: Path) -> None:
    pytester.makepyfile(test_agent=IN_PROCESS.format(prompt="one two one"))
    run(pytester, folder, "--golden-update")
    pytester.makepyfile(test_agent=IN_PROCESS.format(prompt="one two two"))
    result = run(pytester, folder)
    result.stdout.fnmatch_lines(["*conversation 1 is none of the golden ones*", "*token * of the prompt differs*"])
    pytester.makepyfile(
        test_agent="""
            def test_talk(golden):
                golden.llm.generate("one two one", max_tokens=8, temperature=1, ignore_eos=True)
        """
    )
    run(pytester, folder).stdout.fnmatch_lines(["*2 of 3 golden conversations were not held; the first: 'one two*"])
    pytester.makepyfile(test_agent="def test_talk(golden):\n    pass\n")
    run(pytester, folder).stdout.fnmatch_lines(["*the test held no conversation*"])


@pytest.mark.slow
def test_a_test_that_fails_tells_the_difference_and_writes_nothing(pytester: pytest.Pytester, folder: Path) -> None:
    pytester.makepyfile(test_agent=IN_PROCESS.format(prompt="one two one"))
    run(pytester, folder, "--golden-update")
    plant(file := golden_file(pytester), 0, 0)
    before = file.read_text()
    pytester.makepyfile(test_agent=IN_PROCESS.format(prompt="one two one") + "        assert first.text == 'x'\n")
    result = run(pytester, folder, "--golden-update")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*golden conversations*", "conversation 1: token 1, in step 1, differs*"])
    assert file.read_text() == before


@pytest.mark.slow
def test_an_agent_at_the_url_is_equal_in_any_order_of_its_requests(pytester: pytest.Pytester, folder: Path) -> None:
    pytester.makepyfile(test_agent=BY_URL)
    run(pytester, folder, "--golden-update").assert_outcomes(passed=1)
    recorded = list(read_record(golden_file(pytester)))
    assert len(recorded) == 7
    assert len({tuple(one.output) for one in recorded}) == 7  # the same question is answered with another seed
    run(pytester, folder, options="draft='none'").assert_outcomes(passed=1)
    plant(golden_file(pytester), 6, 2)
    result = run(pytester, folder)
    result.stdout.fnmatch_lines(["*conversation 7: token 3, in step * differs: * became *"])


@pytest.mark.slow
def test_an_agent_before_another_server(pytester: pytest.Pytester, folder: Path) -> None:
    pytester.makepyfile(test_agent=BY_URL)
    with Live(LLM(str(folder), draft="ngram", threads=1, max_batch_size=4), "any") as live:
        url = f"--golden-url={live.url}/v1"
        run(pytester, folder, url, "--golden-update").assert_outcomes(passed=1)
        run(pytester, folder, url).assert_outcomes(passed=1)
        file = golden_file(pytester)
        assert file.name == "test_agent.http.jsonl"
        lines = file.read_text().splitlines()
        changed = json.loads(lines[6])
        changed["answers"][0]["tokens"][4] = changed["answers"][0]["text"] = "other"
        file.write_text("\n".join([*lines[:6], json.dumps(changed)]))
        result = run(pytester, folder, url)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*conversation 7: token 5 differs: 'other' became *", "*golden log-probabilities: * -*", "*here: * -*"]
    )
