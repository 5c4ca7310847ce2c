"""What is taken out of a provider's words, and what stays."""

from streaming.protocols.scrub import replacements, scrub

HIDDEN = replacements("https://api.vendor.test/team-a/v1", "sk-vendor-1234", "vendor-model", "gpt-5.6-sol")


def test_address_credential_and_model_go():
    text = (
        b"Bad request to https://api.vendor.test/team-a/v1/chat/completions with Bearer sk-vendor-1234 for vendor-model"
    )
    scrubbed = scrub(text, HIDDEN)
    assert scrubbed == b"Bad request to [provider]/chat/completions with Bearer [credential] for gpt-5.6-sol"


def test_escaped_slashes_go_too():
    assert scrub(rb"https:\/\/api.vendor.test\/team-a\/v1\/x", HIDDEN) == rb"[provider]\/x"


def test_base_path_alone_goes():
    assert scrub(b"no route /team-a/v1/responses", HIDDEN) == b"no route [provider]/responses"


def test_innocent_text_stays():
    text = b'{"error":{"message":"max_tokens must be at most 8192","param":"max_tokens"}}'
    assert scrub(text, HIDDEN) == text


def test_name_within_another_word_stays():
    hidden = replacements("http://vllm:8000/v1", "key-1", "max", "big")
    assert scrub(b'"max_tokens": max, max-tokens, climax; max-2026-01-01', hidden) == (
        b'"max_tokens": big, max-tokens, climax; big-2026-01-01'
    )
    assert scrub(b"vllm says: http://vllm:8000/v1/models", hidden) == b"vllm says: [provider]/models"


def test_host_goes_however_its_port_is_written():
    hidden = replacements("http://api.vendor.test:8443/v1", "key-1", "m", "m")
    text = rb"no api.vendor.test port 8443, http%3A%2F%2Fapi.vendor.test%3A8443, api.vendor.test\u003a8443"
    assert b"vendor" not in scrub(text, hidden)


def test_version_path_tells_nothing():
    hidden = replacements("http://10.0.0.1:8080/v1", "key-1", "m", "m")
    assert scrub(b"POST /v1/responses", hidden) == b"POST /v1/responses"
    assert scrub(b"10.0.0.1:8080 refused m", hidden) == b"[provider] refused m"
