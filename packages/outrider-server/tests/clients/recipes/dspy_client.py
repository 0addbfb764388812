import os

import dspy

dspy.configure(lm=dspy.LM("openai/lab", api_base=os.environ["URL"] + "/v1", api_key="none", cache=False))
said = "SAY <<[[ ## reasoning ## ]]\nIt is known.\n\n[[ ## answer ## ]]\nParis\n\n[[ ## completed ## ]]>>"
assert dspy.ChainOfThought("question -> answer")(question=said).answer == "Paris"
with dspy.context(adapter=dspy.JSONAdapter()):
    said = 'SAY <<{"answer": 5}>>'
    assert dspy.Predict("question -> answer: int")(question=said).answer == 5
