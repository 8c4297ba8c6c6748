"""The patterns of secrets, and of names and places that must not leave the gateway."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple


class CredentialFormat(NamedTuple):
    """The format of one issuer's credentials: a literal start, and a pattern for the rest, which also checks where it ends. A
    letter or digit directly before the start rules out a match."""

    starts: tuple[str, ...]
    rest: str


_ENDS: Final = r"(?![A-Za-z0-9])"
_B64: Final = r"[A-Za-z0-9_-]"  # of URLs
_NOT_IN_BASE64: Final = r"(?<![A-Za-z0-9][_-])"  # a start this short may occur inside any base64
_DIGITS_IN_B64: Final = r"(?:[MNO][DTjz][AEIMQUYcgk][w-z0-5]){5,6}[A-Za-z]{0,3}"  # 17 to 20 digits, written in base64
_DIGIT_IN: Final = r"(?=[A-Za-z_-]*[0-9])"

# Sources: the issuer's documentation, and the secret scanners of GitHub, gitleaks and TruffleHog.
CREDENTIAL_FORMATS: Final = (
    # models
    CredentialFormat(("sk-proj-", "sk-svcacct-", "sk-admin-", "sk-None-"), rf"{_B64}{{16,}}"),  # OpenAI
    CredentialFormat(("sk-ant-",), rf"{_B64}{{16,}}"),
    CredentialFormat(("sk-or-v1-",), r"[0-9a-f]{32,}"),
    CredentialFormat(("sk-lf-",), r"[0-9a-f-]{32,}"),  # Langfuse
    CredentialFormat((), rf"{_NOT_IN_BASE64}sk-(?=[A-Za-z]*[0-9])[A-Za-z0-9]{{32,}}"),  # older keys: OpenAI, DeepSeek, Stability
    CredentialFormat(("xai-", "gsk_", "pplx-", "csk-"), r"(?=[A-Za-z]*[0-9])[A-Za-z0-9]{20,}"),
    CredentialFormat((), rf"{_NOT_IN_BASE64}hf_[A-Za-z0-9]{{30,}}"),
    CredentialFormat((), rf"{_NOT_IN_BASE64}r8_[A-Za-z0-9]{{37}}" + _ENDS),
    CredentialFormat(("nvapi-",), rf"{_B64}{{40,}}"),
    CredentialFormat(("pcsk_",), r"[A-Za-z0-9_]{40,}"),
    CredentialFormat(("tvly-",), rf"{_DIGIT_IN}[A-Za-z0-9-]{{20,}}"),
    CredentialFormat(("lsv2_pt_", "lsv2_sk_"), r"[0-9a-f]{32}_[0-9a-f]{10}"),
    # clouds
    CredentialFormat(("AKIA", "ASIA", "ABIA", "ACCA"), r"[A-Z0-9]{16}" + _ENDS),
    CredentialFormat(("ABSK",), r"[A-Za-z0-9+/]{80,}={0,2}"),  # Bedrock
    CredentialFormat(("bedrock-api-key-",), r"[A-Za-z0-9+/=]{40,}"),
    CredentialFormat(("FwoGZXIvYXdz", "FQoGZXIvYXdz", "IQoJb3JpZ2lu"), r"[A-Za-z0-9+/=]{40,}"),  # session tokens of AWS
    CredentialFormat(("AIza",), rf"{_B64}{{35}}" + _ENDS),
    CredentialFormat(("ya29.",), r"[A-Za-z0-9_.-]{20,}"),
    CredentialFormat(("GOCSPX-",), rf"{_B64}{{28}}"),
    CredentialFormat(("1//0",), rf"{_B64}{{40,}}"),  # Google's refresh tokens
    CredentialFormat(("AccountKey=", "SharedAccessKey="), r"[A-Za-z0-9+/%]{43,}={0,2}"),  # Azure
    CredentialFormat(("sig=",), r"[A-Za-z0-9+/%]{43,}(?:%3[Dd]|=)"),
    CredentialFormat((), r"[A-Za-z0-9+/]{76}\+ASt[A-Za-z0-9+/]{5}[AQgw]=="),
    CredentialFormat((), r"[A-Za-z0-9]{52}JQQJ99[A-Za-z0-9]{26}" + _ENDS),
    CredentialFormat((), r"[A-Za-z0-9_~.-]{3}[78]Q~[A-Za-z0-9_~.-]{31,34}"),  # Entra ID
    CredentialFormat(("dop_v1_", "doo_v1_", "dor_v1_"), r"[0-9a-f]{64}"),
    CredentialFormat(("HRKU-",), rf"{_B64}{{36,}}"),
    CredentialFormat(("dapi",), r"[0-9a-f]{32}(?:-\d)?" + _ENDS),
    CredentialFormat(("sbp_",), r"[0-9a-f]{40}"),
    CredentialFormat(("pscale_tkn_", "pscale_pw_", "pscale_oauth_"), r"[A-Za-z0-9_.=-]{32,}"),
    CredentialFormat(("nfp_",), r"[A-Za-z0-9]{36}"),
    CredentialFormat(("v1.0-",), r"[0-9a-f]{24}-[0-9a-f]{100,}"),  # Cloudflare
    # code and packages
    CredentialFormat(("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"[A-Za-z0-9]{36,}"),
    CredentialFormat(("github_pat_",), r"[A-Za-z0-9_]{36,}"),
    CredentialFormat(
        tuple(f"gl{kind}-" for kind in ("pat", "dt", "rt", "rtr", "ptt", "ft", "soat", "cbt", "imt", "agent", "oas", "ffct")),
        rf"{_DIGIT_IN}[A-Za-z0-9_.-]{{20,}}",
    ),
    CredentialFormat(("npm_",), r"[A-Za-z0-9]{36}" + _ENDS),
    CredentialFormat(("pypi-Ag",), rf"{_B64}{{32,}}"),
    CredentialFormat(("rubygems_",), r"[0-9a-f]{48}"),
    CredentialFormat(("dckr_pat_", "dckr_oat_"), rf"{_B64}{{20,}}"),
    CredentialFormat(("ATATT3",), r"[A-Za-z0-9_=-]{50,}"),  # Atlassian
    CredentialFormat(("lin_api_",), r"[A-Za-z0-9]{32,}"),
    CredentialFormat(("PMAK-",), r"[0-9a-f]{24}-[0-9a-f]{34}"),  # Postman
    CredentialFormat((), r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,}"),  # Terraform
    # chat and mail
    CredentialFormat(
        ("xoxb-", "xoxp-", "xoxa-", "xoxe-", "xoxo-", "xoxr-", "xoxs-", "xoxc-", "xoxe.xoxp-", "xoxe.xoxb-", "xapp-1-"),
        r"(?=[A-Za-z-]*[0-9])[A-Za-z0-9-]{16,}",
    ),
    CredentialFormat((), r"hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9+/]{20,}"),
    CredentialFormat((), r"(?:canary\.|ptb\.)?discord(?:app)?\.com/api/webhooks/\d{5,}/[A-Za-z0-9_-]{30,}"),
    CredentialFormat((), rf"{_DIGITS_IN_B64}\.{_B64}{{6}}\.{_B64}{{27,40}}" + _ENDS),  # Discord
    CredentialFormat((), rf"\d{{8,10}}:AA{_B64}{{32,33}}" + _ENDS),  # Telegram
    CredentialFormat(("SG.",), r"[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{32,}"),
    CredentialFormat((), rf"{_NOT_IN_BASE64}key-[0-9a-f]{{32}}" + _ENDS),  # Mailgun
    CredentialFormat((), r"[0-9a-f]{32}-[0-9a-f]{8}-[0-9a-f]{8}" + rf"(?!{_B64})"),
    CredentialFormat((), r"[0-9a-f]{32}-us\d{1,2}" + _ENDS),  # Mailchimp
    CredentialFormat(("xkeysib-",), r"[0-9a-f]{64}-[A-Za-z0-9]{16}"),
    CredentialFormat(("SK",), r"[0-9a-f]{32}" + _ENDS),  # Twilio
    # payments and shops
    CredentialFormat(("sk_live_", "sk_test_", "rk_live_", "rk_test_"), r"[A-Za-z0-9]{10,}"),
    CredentialFormat(("whsec_",), r"[A-Za-z0-9+/=]{24,}"),
    CredentialFormat(("shpat_", "shpca_", "shppa_", "shpss_"), r"[A-Fa-f0-9]{32}"),
    CredentialFormat(("sq0atp-", "sq0csp-"), rf"{_B64}{{22,43}}"),
    CredentialFormat(("EAAA",), rf"(?=[A-Za-z_-]*[0-9]){_B64}{{60}}(?![A-Za-z0-9+/=_-])"),
    # vaults, logs and others
    CredentialFormat(("hvs.", "hvb.", "hvr."), rf"{_B64}{{24,}}"),
    CredentialFormat(("AGE-SECRET-KEY-1",), r"[0-9A-Z]{58}"),
    CredentialFormat(("ops_eyJ",), r"[A-Za-z0-9+/=_-]{100,}"),
    CredentialFormat(("dp.pt.", "dp.st.", "dp.ct.", "dp.sa."), r"[A-Za-z0-9_.-]{40,}"),
    CredentialFormat(("NRAK-",), r"[A-Z0-9]{27}"),
    CredentialFormat(("glsa_", "glc_"), r"[A-Za-z0-9+/=_]{32,}"),
    CredentialFormat(("sntrys_", "sntryu_"), r"[A-Za-z0-9+/=_-]{40,}"),
    CredentialFormat(("figd_",), rf"{_B64}{{40}}"),
    CredentialFormat(("ntn_", "secret_"), r"[A-Za-z0-9]{40,}"),  # Notion
    CredentialFormat((), r"pat[A-Za-z0-9]{14}\.[0-9a-f]{64}"),  # Airtable
    CredentialFormat(("tskey-auth-", "tskey-api-", "tskey-client-"), r"[A-Za-z0-9]{6,}(?:CNTRL)?-[A-Za-z0-9]{16,}"),
    CredentialFormat(("eyJ",), rf"{_B64}{{10,}}\.(?:{_B64}{{10,}}(?:\.{_B64}*){{1,3}}|{_B64}{{200,}})"),  # JSON Web Tokens
)

_PLACEHOLDER: Final = (
    r"(?:(?:my|your|the|db|super|strong)[-_]?){0,2}(?:password|passwd|pass|pwd|pw|secret|token|user(?:name)?|root|admin|guest"
    r"|postgres|example|changeme|foo|bar|x+|\*+|\.+|-+|\d{0,3})\d{0,3}@"
)


def _alternatives() -> Iterator[str]:
    for kind in CREDENTIAL_FORMATS:
        starts = "|".join(map(re.escape, kind.starts))
        yield f"(?:{starts}){kind.rest}" if len(kind.starts) != 1 and starts else starts + kind.rest


CREDENTIAL: Final = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(_alternatives())})")
"""Matches each of ``CREDENTIAL_FORMATS``."""

LOGIN: Final = re.compile(rf"(?<=://)[^\s/@:?#]{{0,128}}:(?!(?i:{_PLACEHOLDER}))[^\s/@]{{1,256}}(?=@)")
"""Name and password in a URL, except placeholders in documentation."""

AWS_SECRET: Final = re.compile(r"(?<![A-Za-z0-9+/])(?=[A-Za-z0-9+/]*[G-Zg-z+/])[A-Za-z0-9+/]{40}(?![A-Za-z0-9+/=])")
"""An AWS secret key has no distinctive format. This matches one only after ``AWS_SECRET_NAME`` (a name, or the key's id)."""
AWS_SECRET_NAME: Final = re.compile(r"(?:(?i:secret|aws)[\w .-]{0,24}|(?:AKIA|ASIA)[A-Z0-9]{16})\W{0,16}\Z")

BEARER: Final = re.compile(r"(?i:\bbearer)\W{1,8}\Z")
BEARER_TOKEN: Final = re.compile(r"(?<![A-Za-z0-9._~+/-])(?=(?:[A-Za-z._~+/-]*[0-9]){2})[A-Za-z0-9._~+/-]{20,}=*")
"""A token, if it follows ``BEARER``. Text with fewer than two digits is a placeholder in documentation."""

PRIVATE_KEY: Final = re.compile(r"-----BEGIN (?:[A-Z0-9]{2,12} ){0,2}PRIVATE KEY(?: BLOCK)?-----")
"""The header of a private key; its lines follow."""
_KEY_LINES: Final = r"(?:\s|\\[nr]|[A-Za-z0-9+/=:,-])"
PRIVATE_KEY_LINES: Final = re.compile(rf"{PRIVATE_KEY.pattern}(?:{_KEY_LINES}*?-----END [A-Z0-9 ]*-----|{_KEY_LINES}*)")
"""Header and lines."""

PLACES: Final = tuple(
    map(
        re.compile,
        (
            r"\barn:aws[\w-]*:[^\s\"'<>,]+",
            r"(?i)\b[a-z][a-z0-9+.-]{1,20}://[^\s\"'<>]+",
            r"(?i)(?<![a-z0-9.-])[a-z0-9.-]+\.(?:amazonaws\.com|api\.aws|on\.aws)(?:\.cn)?\b[^\s\"'<>,]*",
            r"(?<![\w.])/(?:var|opt|tmp|home|root|usr|etc|mnt|srv|app|private|Users|Library|proc|dev)/[^\s\"'<>,:;)]+",
            r"(?<![\w.@+/-])(?:[\w.@+-]*/)+[\w.@+-]+\.(?:py|pyc|so|ya?ml|env|pem|key)\b",
            r"\b[A-Za-z]:\\[^\s\"'<>]+",
        ),
    ),
)
"""ARNs, URLs, AWS hosts and file paths."""

# Top-level domains, and the names that private networks use as such. Prose may have a word directly after a full stop, and a path
# of fields has a name there, so a domain that is also a word counts only after two dots.
_TOP_LEVEL_DOMAINS: Final = (
    "ai|app|arpa|au|aws|biz|br|ca|cc|ch|cloud|cluster|cn|com|corp|cz|de|dev|dk|edu|es|eu|fi|fr|gg|gov|gr|home|host|ie|il|info"
    "|internal|intra|intranet|io|jp|kr|lan|local|localdomain|localhost|mil|mx|net|nl|nz|online|org|pl|pt|ru|se|sg|site|svc"
    "|systems|tech|tr|tv|tw|uk|xyz|za"
)
_WORDLIKE_DOMAINS: Final = "at|be|co|fm|hk|in|is|it|ly|me|network|no|page|run|sh|so|test|to|us"

_NAMED_KEY: Final = AWS_SECRET_NAME.pattern.removesuffix(r"\Z") + AWS_SECRET.pattern
_HEX: Final = "[0-9a-fA-F]{1,4}"
PROVIDER_TEXT: Final[tuple[str | re.Pattern[str], ...]] = (
    r"(?s)Traceback \(most recent call last\).*",
    PRIVATE_KEY_LINES,
    _NAMED_KEY,
    CREDENTIAL,
    r"(?i)\b[a-z][a-z0-9+.-]*://\S+",  # URLs
    r"\barn:[\w:/.*-]+",
    r"(?i)\bbearer\s+\S+",
    r"\beyJ[-_A-Za-z0-9]{5,}(?:\.[-_A-Za-z0-9]*)*",  # JSON Web Tokens
    r"\b(?:AKIA|ASIA|AROA|AIDA|ABIA|ACCA)[A-Z0-9]{8,}",
    # prefixes that only keys have; partly masked keys too
    r"\b(?:sk-|[spr]k_(?:live|test)_|xai-|gsk_|hf_|gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|AIza)[-_A-Za-z0-9*.]{4,}",
    r"\b(?:sk|pk|rk|org|proj|key)[-_][-_A-Za-z0-9*.]*[0-9*][-_A-Za-z0-9*.]{3,}",
    r"(?<![\w-])\w[\w-]*\*{3,}[\w*-]*",  # any other partly masked key
    r"\b[A-Za-z]:\\[^\s'\"]*(?: [^\s'\"\\]+\\[^\s'\"]*)*",  # paths of Windows, its shares
    r"\\\\[\w.$-]+\\[^\s'\"]*",
    r"\[[0-9a-fA-F:.]*:[0-9a-fA-F:.]*(?:%\w+)?\](?::\d+)?",  # IPv6
    rf"(?<![\w:.])(?:{_HEX}(?::{_HEX}){{7}}|{_HEX}(?::{_HEX})*::(?:{_HEX}(?::{_HEX})*)?|::{_HEX}(?::{_HEX})*)(?![\w:])",
    r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b",
    r"(?i)(?<![\w.-])[a-z][a-z0-9.-]*:(?:80|443|[1-9]\d{3,4})(?!\w)(?:/\S*)?",  # hosts
    rf"(?i)(?<![\w.-])(?:[a-z0-9-]+\.)+(?:{_TOP_LEVEL_DOMAINS})\b(?![\w-])(?::\d+)?(?:/\S*)?",
    rf"(?i)(?<![\w.-])(?:[a-z0-9-]+\.){{2,}}(?:{_WORDLIKE_DOMAINS})\b(?![\w-])(?::\d+)?(?:/\S*)?",
    r"(?<![\w/.<#])(?:~|\.{1,2})?/(?:[\w@-]|\.\w)[\w.@-]*(?:/[\w.@-]*)*",  # paths
)
"""Secrets (also partly masked ones), hosts, addresses and paths in a provider's message.
Most patterns are strings, which ``re`` compiles at first use: a cold start must not wait for them."""
