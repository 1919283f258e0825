"""`--web.config.file` and listening addresses: TLS, client certificates, users, IPv4 and IPv6."""

from __future__ import annotations

import base64
import json
import socket
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import bcrypt
import pytest
import trustme

from llmobs.errors import ConfigError, LlmobsError
from llmobs.exporter import listen, webconfig
from tests.exporter.serving import Client, with_server


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def web_config(folder: Path, authority: trustme.CA, **more: Any) -> Path:
    authority.issue_cert("localhost", "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
        str(folder / "server.pem")
    )
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    file = folder / "web.yaml"
    tls = {"cert_file": "server.pem", "key_file": "server.pem", **more}
    file.write_text(json.dumps({"tls_server_config": tls}))
    return file


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def test_basic_auth(tmp_path: Path) -> None:
    """Only a user with the right password gets in, on every path."""
    file = tmp_path / "web.yaml"
    hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
    file.write_text(
        json.dumps({"basic_auth_users": {"eve": hashed}, "http_server_config": {"headers": {"X-Own": "1"}}})
    )

    async def test(get: Client) -> Any:
        headers = [{}, basic("eve", "wrong"), basic("eve", "right"), basic("eve", "right"), basic("bob", "right"),
                   {"Authorization": "Bearer x"}, {"Authorization": "Basic !!!"}, basic("eve", "")]  # fmt: skip
        found = [await get("/metrics", headers=h) for h in headers]
        assert found[2][1]["X-Own"] == "1"
        return [f[0] for f in found], [(await get(p))[0] for p in ("/", "/-/healthy", "/api/v1/state", "/nowhere")]

    assert with_server(test, config=webconfig.read(file)) == ([401, 401, 200, 200, 401, 401, 401, 401], [401] * 4)


def test_tls_and_client_certificates(tmp_path: Path, authority: trustme.CA) -> None:
    """The page is served by TLS; where client certificates are asked for, only those with one get in."""
    trust = ssl.create_default_context(cafile=None)
    authority.configure_trust(trust)

    async def test(get: Client) -> Any:
        return (await get("/-/healthy"))[0]

    assert with_server(test, config=webconfig.read(web_config(tmp_path, authority)), tls=trust) == 200
    asking = webconfig.read(
        web_config(tmp_path, authority, client_auth_type="RequireAndVerifyClientCert", client_ca_file="ca.pem")
    )
    with pytest.raises((aiohttp.ClientError, OSError)):
        with_server(test, config=asking, tls=trust)
    mine = ssl.create_default_context()
    authority.configure_trust(mine)
    authority.issue_cert("client@example").configure_cert(mine)
    assert with_server(test, config=asking, tls=mine) == 200


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("tls_server_confg: {}", "did you mean 'tls_server_config'"),
        ("tls_server_config: {cert_file: x}", "needs cert_file and key_file"),
        ("tls_server_config: [x]", "must hold"),
        ("tls_server_config: {cert_file: none, key_file: none}", "cannot be used"),
        ("tls_server_config: {cert_file: server.pem, key_file: server.pem, min_version: TLS9}", "not one of TLS12"),
        ("tls_server_config: {cert_file: server.pem, key_file: server.pem, client_auth_type: X}", "not one of"),
        ("tls_server_config: {cert_file: server.pem, key_file: server.pem, client_auth_type: RequireAnyClientCert}",
         "needs client_ca_file"),
        ("tls_server_config: {cert_file: server.pem, key_file: server.pem, cipher_suites: [nonsense]}", "cannot be"),
        ("tls_server_config: {cert_file: server.pem, key_file: server.pem, cipher_suites: 5}", "cipher_suites"),
        ("tls_server_config: {cert_file: [a], key_file: server.pem}", "cert_file"),
        ("basic_auth_users: {eve: plain-secret}", "bcrypt"),
        ("basic_auth_users: [eve]", "bcrypt"),
        ("http_server_config: [x]", "http_server_config"),
        ("http_server_config: {headers: [x]}", "headers"),
        ("- x", "expected the keys"),
        ("a: [", "not valid YAML"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_web_configuration(tmp_path: Path, authority: trustme.CA, document: str, message: str) -> None:
    """Each is one ConfigError that names the key, without a password."""
    file = web_config(tmp_path, authority)
    file.write_text(document)
    with pytest.raises(ConfigError) as raised:
        webconfig.read(file)
    assert message in str(raised.value)
    assert "plain-secret" not in str(raised.value)


@pytest.mark.parametrize("address", [":0", "127.0.0.1:0", "[::1]:0", "localhost:0", "[::]:0"])
def test_addresses_can_be_listened_on(address: str) -> None:
    """IPv4, IPv6, names, and every address at once."""
    with listen.bind(address) as sock:
        port = sock.getsockname()[1]
        hosts = {":0": ["127.0.0.1", "::1"], "[::]:0": ["127.0.0.1", "::1"], "[::1]:0": ["::1"]}.get(
            address, ["127.0.0.1"]
        )
        for host in hosts if address != "localhost:0" else []:
            socket.create_connection((host, port), timeout=2).close()
        assert listen.url(sock, tls=False).endswith(f":{port}/")


def test_a_port_that_is_taken_is_said() -> None:
    """The message says what to do."""
    with listen.bind("127.0.0.1:0") as sock, pytest.raises(LlmobsError, match="choose another with --listen"):
        listen.bind(f"127.0.0.1:{sock.getsockname()[1]}")
    with pytest.raises(LlmobsError, match="cannot listen on"):
        listen.bind("nowhere.invalid:0")
