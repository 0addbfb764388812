"""A report as a JSON document: dated, with a digest of each part, signed with ed25519; and its verification.

The signature is of the table of digests, so that a change names the part that it is in.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from html import unescape
from importlib import import_module
from pathlib import Path
from typing import Any

from outrider import __version__
from outrider.errors import ConfigError
from outrider.native.processor import processor_name
from outrider.utils.system import private_file
from outrider_lab.certify.report import Certificate
from outrider_lab.referee.page import ELEMENT, Document, render

__all__ = ["changes", "make_document", "read_document"]

FORMAT = "outrider-referee 1"


def make_document(found: Certificate, commands: list[str], servers: Mapping[str, Any], key: Path | None) -> Document:
    """The report of ``found``, signed with the private key in the file ``key``, which is made if it is not there.

    Raises:
        ConfigError: ``key`` is no ed25519 key, or the package of keys is not installed.
    """
    body = {
        "format": FORMAT,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "subject": found.subject,
        "servers": dict(servers),
        "referee": {"version": __version__, "machine": f"{processor_name()}, {os.cpu_count()} processors, "
                    f"{platform.system()} {platform.machine()}"},
        "commands": commands,
        "result": json.loads(found.as_json()),
    }  # fmt: skip
    document: Document = {**json.loads(json.dumps(body)), "digests": {}}
    document["digests"] = _digests(document)
    if key is not None:
        private = _private_key(key)
        document["signature"] = {
            "algorithm": "ed25519",
            "public_key": private.public_key().public_bytes_raw().hex(),
            "value": private.sign(_canonical(document["digests"])).hex(),
        }
    return document


def _parts(document: Document) -> dict[str, Any]:
    """The parts that have a digest each: every field, every field of the result, and every check."""
    result = document.get("result")
    parts = {k: v for k, v in document.items() if k not in ("result", "digests", "signature")}
    if not isinstance(result, dict):
        return {**parts, "result": result}
    parts |= {f"result: {k}": v for k, v in result.items() if k != "checks"}
    checks = result.get("checks") or []
    parts["order of checks"] = [check.get("name") for check in checks]
    return parts | {f"check {check.get('name')!r}": check for check in checks}


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


def _digests(document: Document) -> dict[str, str]:
    return {name: hashlib.sha256(_canonical(part)).hexdigest() for name, part in _parts(document).items()}


def read_document(path: Path) -> tuple[Document, str | None]:
    """The document in a JSON file, or in a page and then also the page. Raises ConfigError for another file."""
    try:
        text = path.read_text(encoding="utf-8")
        page = None if text.lstrip().startswith("{") else text
        if page is not None:
            inside = re.search(re.escape(ELEMENT) + "(.*?)</script>", page, re.DOTALL)
            text = unescape(inside[1]) if inside else ""
        document = json.loads(text)
        if document["format"] != FORMAT or not isinstance(document["digests"], dict):
            raise ValueError
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{path} is no report of outrider referee") from None
    return document, page


def changes(document: Document, page: str | None = None, signer: str | None = None) -> list[str]:
    """What was changed after the report was made; empty: nothing, and the signature is right.

    Args:
        page: the page that the document was read from, which must be the one that the document makes.
        signer: the public key that must have signed, as hexadecimal digits; None: any key.
    """
    now, then = _digests(document), document["digests"]
    found = [f"{name}: was changed" for name, digest in now.items() if name in then and then[name] != digest]
    found += [f"{name}: was added" for name in now if name not in then]
    found += [f"{name}: was removed" for name in then if name not in now]
    if page is not None and render(document) != page:
        found.append("the page: it is not the one of its report")
    return found + _signature_faults(document, signer)


def _signature_faults(document: Document, signer: str | None) -> list[str]:
    signature = document.get("signature")
    if not isinstance(signature, dict):
        return ["signature: the report has none"]
    exceptions = _cryptography("exceptions")
    keys = _cryptography("hazmat.primitives.asymmetric.ed25519")
    try:
        public = keys.Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature["public_key"]))
        public.verify(bytes.fromhex(signature["value"]), _canonical(document["digests"]))
    except (exceptions.InvalidSignature, KeyError, TypeError, ValueError):
        return ["signature: it is not of these digests by this key"]
    if signer is not None and signer.lower() != signature["public_key"]:
        return [f"signature: {signature['public_key']} signed, and not {signer}"]
    return []


def _private_key(path: Path) -> Any:
    serialization = _cryptography("hazmat.primitives.serialization")
    keys = _cryptography("hazmat.primitives.asymmetric.ed25519")
    try:
        if not path.exists():
            made = keys.Ed25519PrivateKey.generate()
            form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
            with os.fdopen(private_file(path, "x"), "wb") as file:
                file.write(made.private_bytes(*form))
        private = serialization.load_pem_private_key(path.read_bytes(), None)
    except OSError as error:
        raise ConfigError(f"cannot use the key {path}: {error.strerror}") from None
    except (ValueError, TypeError):
        private = None
    if not isinstance(private, keys.Ed25519PrivateKey):
        raise ConfigError(f"{path} is no ed25519 key without a password (PEM)")
    return private


def _cryptography(name: str) -> Any:
    try:
        return import_module(f"cryptography.{name}")
    except ImportError:
        raise ConfigError("signatures need a package: pip install 'outrider-lab[sign]'") from None
