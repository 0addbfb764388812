"""Openings of conversations, which vary the target's topics: languages, code, tasks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Opening:
    """``start``: first words of the user's message, which the target completes."""

    kind: str
    system: str | None = None
    start: str = ""


PLAIN = Opening("plain")

_LANGUAGES = (
    ("german", "Du bist ein hilfsbereiter Assistent und antwortest auf Deutsch.", ("Wie kann ich", "Erkläre mir")),
    ("french", "Tu es un assistant serviable et tu réponds en français.", ("Comment puis-je", "Explique-moi")),
    ("spanish", "Eres un asistente amable y respondes en español.", ("¿Cómo puedo", "Explícame")),
    ("italian", "Sei un assistente disponibile e rispondi in italiano.", ("Come posso", "Spiegami")),
    ("portuguese", "Você é um assistente prestativo e responde em português.", ("Como posso", "Explique")),
    ("chinese", "你是一个乐于助人的助手,请用中文回答。", ("请解释", "如何")),
    ("japanese", "あなたは親切なアシスタントです。日本語で答えてください。", ("教えて",)),
    ("russian", "Ты полезный помощник и отвечаешь по-русски.", ("Как мне", "Объясни")),
)
_TASKS = (
    ("python", "You are a Python programmer. Answer with working code.", ("Write a Python function that",)),
    ("javascript", "You help with web development in JavaScript, HTML and CSS.", ("How do I", "In JavaScript,")),
    ("sql", "You write and explain SQL queries.", ("Write a query that", "Given a table with the columns")),
    ("shell", "You are an expert in the Linux command line.", ("How can I", "Write a shell script that")),
    ("systems", "You program in C, C++ and Rust.", ("Implement", "Why does this code")),
    ("debugging", "You find errors in code and explain how to correct them.", ("My program",)),
    ("math", "You solve mathematical problems step by step.", ("A shop sells", "Calculate", "Find all")),
    ("writing", "You write stories, poems and letters.", ("Write a short", "Continue this story:")),
    ("editing", "You improve texts: grammar, style and clarity.", ("Correct the following text:", "Rewrite")),
    ("summary", "You summarise texts that users give you.", ("Summarize the following text:",)),
    ("translation", "You translate between languages.", ("Translate the following sentence into",)),
    ("data", "You answer with JSON or tables only.", ("List", "Convert the following into JSON:")),
    ("science", "You explain science to students.", ("Why do", "What is the difference between")),
    ("advice", "You give practical advice for everyday life.", ("I have been", "What should I")),
    ("roleplay", "You play the part that the user asks for.", ("Pretend that you are",)),
    ("reasoning", "You think about puzzles and plans in small steps.", ("Suppose that", "Plan")),
)

OPENINGS: tuple[Opening, ...] = tuple(
    Opening(kind, system, start) for kind, system, starts in (*_LANGUAGES, *_TASKS) for start in ("", *starts)
)
"""With a system message, and each with and without first words."""

QUESTIONS = ("", "Summarize", "What does the text say about", "According to the text,", "List", "Why", "Rewrite")
"""First words behind a document."""
