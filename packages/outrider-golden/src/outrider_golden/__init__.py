"""Golden conversations: what a model said in a test, kept in a file, and compared token by token in later runs.

    def test_the_agent_books_a_table(golden):
        answer = run_my_agent(OpenAI(base_url=golden.url, api_key="none"))   # or golden.llm.chat(...)
        assert "booked" in answer

``pytest --golden-update`` writes the files. ``outrider_golden.plugin`` is the pytest plugin.
"""
