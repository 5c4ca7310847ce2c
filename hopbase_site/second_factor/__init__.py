"""The second step of a login: a code of an authenticator app (TOTP, RFC 6238), or a recovery code.

- `codes`: secrets, recovery codes and what people type, without the database
- `factors`: turned on, checked, taken off
- `gate`: no page before the code
- `pages`: where one types it, and sets it up

Decision: docs/adr/0019-second-factor.md.
"""
