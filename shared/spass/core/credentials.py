"""What credentials look like: the kinds that nothing else begins like, or that are as long as nothing else."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple


class Kind(NamedTuple):
    """One kind: how it may begin, to the letter, and what must follow. The whole counts only where no letter or digit stands
    before it; ``rest`` says itself where it must end."""

    starts: tuple[str, ...]
    rest: str


_ENDS: Final = r"(?![A-Za-z0-9])"
_B64: Final = r"[A-Za-z0-9_-]"  # of URLs
_NOT_GLUED: Final = r"(?<![A-Za-z0-9][_-])"  # three characters more may well stand in the middle of anything in base64
_DIGITS_IN_B64: Final = r"(?:[MNO][DTjz][AEIMQUYcgk][w-z0-5]){5,6}[A-Za-z]{0,3}"  # 17 to 20 digits, written in base64
_DIGIT_IN: Final = r"(?=[A-Za-z_-]*[0-9])"

# Each is what its issuer documents, or what the secret scanners of GitHub, gitleaks and TruffleHog know of it.
KINDS: Final = (
    # models
    Kind(("sk-proj-", "sk-svcacct-", "sk-admin-", "sk-None-"), rf"{_B64}{{16,}}"),  # OpenAI
    Kind(("sk-ant-",), rf"{_B64}{{16,}}"),
    Kind(("sk-or-v1-",), r"[0-9a-f]{32,}"),
    Kind(("sk-lf-",), r"[0-9a-f-]{32,}"),  # Langfuse
    Kind((), rf"{_NOT_GLUED}sk-(?=[A-Za-z]*[0-9])[A-Za-z0-9]{{32,}}"),  # OpenAI of old, DeepSeek, Stability
    Kind(("xai-", "gsk_", "pplx-", "csk-"), r"(?=[A-Za-z]*[0-9])[A-Za-z0-9]{20,}"),
    Kind((), rf"{_NOT_GLUED}hf_[A-Za-z0-9]{{30,}}"),
    Kind((), rf"{_NOT_GLUED}r8_[A-Za-z0-9]{{37}}" + _ENDS),
    Kind(("nvapi-",), rf"{_B64}{{40,}}"),
    Kind(("pcsk_",), r"[A-Za-z0-9_]{40,}"),
    Kind(("tvly-",), rf"{_DIGIT_IN}[A-Za-z0-9-]{{20,}}"),
    Kind(("lsv2_pt_", "lsv2_sk_"), r"[0-9a-f]{32}_[0-9a-f]{10}"),
    # clouds
    Kind(("AKIA", "ASIA", "ABIA", "ACCA"), r"[A-Z0-9]{16}" + _ENDS),
    Kind(("ABSK",), r"[A-Za-z0-9+/]{80,}={0,2}"),  # Bedrock
    Kind(("bedrock-api-key-",), r"[A-Za-z0-9+/=]{40,}"),
    Kind(("FwoGZXIvYXdz", "FQoGZXIvYXdz", "IQoJb3JpZ2lu"), r"[A-Za-z0-9+/=]{40,}"),  # session tokens of AWS
    Kind(("AIza",), rf"{_B64}{{35}}" + _ENDS),
    Kind(("ya29.",), r"[A-Za-z0-9_.-]{20,}"),
    Kind(("GOCSPX-",), rf"{_B64}{{28}}"),
    Kind(("1//0",), rf"{_B64}{{40,}}"),  # Google's refresh tokens
    Kind(("AccountKey=", "SharedAccessKey="), r"[A-Za-z0-9+/%]{43,}={0,2}"),  # Azure
    Kind(("sig=",), r"[A-Za-z0-9+/%]{43,}(?:%3[Dd]|=)"),
    Kind((), r"[A-Za-z0-9+/]{76}\+ASt[A-Za-z0-9+/]{5}[AQgw]=="),
    Kind((), r"[A-Za-z0-9]{52}JQQJ99[A-Za-z0-9]{26}" + _ENDS),
    Kind((), r"[A-Za-z0-9_~.-]{3}[78]Q~[A-Za-z0-9_~.-]{31,34}"),  # Entra ID
    Kind(("dop_v1_", "doo_v1_", "dor_v1_"), r"[0-9a-f]{64}"),
    Kind(("HRKU-",), rf"{_B64}{{36,}}"),
    Kind(("dapi",), r"[0-9a-f]{32}(?:-\d)?" + _ENDS),
    Kind(("sbp_",), r"[0-9a-f]{40}"),
    Kind(("pscale_tkn_", "pscale_pw_", "pscale_oauth_"), r"[A-Za-z0-9_.=-]{32,}"),
    Kind(("nfp_",), r"[A-Za-z0-9]{36}"),
    Kind(("v1.0-",), r"[0-9a-f]{24}-[0-9a-f]{100,}"),  # Cloudflare
    # code and packages
    Kind(("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"[A-Za-z0-9]{36,}"),
    Kind(("github_pat_",), r"[A-Za-z0-9_]{36,}"),
    Kind(
        tuple(f"gl{kind}-" for kind in ("pat", "dt", "rt", "rtr", "ptt", "ft", "soat", "cbt", "imt", "agent", "oas", "ffct")),
        rf"{_DIGIT_IN}[A-Za-z0-9_.-]{{20,}}",
    ),
    Kind(("npm_",), r"[A-Za-z0-9]{36}" + _ENDS),
    Kind(("pypi-Ag",), rf"{_B64}{{32,}}"),
    Kind(("rubygems_",), r"[0-9a-f]{48}"),
    Kind(("dckr_pat_", "dckr_oat_"), rf"{_B64}{{20,}}"),
    Kind(("ATATT3",), r"[A-Za-z0-9_=-]{50,}"),  # Atlassian
    Kind(("lin_api_",), r"[A-Za-z0-9]{32,}"),
    Kind(("PMAK-",), r"[0-9a-f]{24}-[0-9a-f]{34}"),  # Postman
    Kind((), r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,}"),  # Terraform
    # talk and mail
    Kind(
        ("xoxb-", "xoxp-", "xoxa-", "xoxe-", "xoxo-", "xoxr-", "xoxs-", "xoxc-", "xoxe.xoxp-", "xoxe.xoxb-", "xapp-1-"),
        r"(?=[A-Za-z-]*[0-9])[A-Za-z0-9-]{16,}",
    ),
    Kind((), r"hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9+/]{20,}"),
    Kind((), r"(?:canary\.|ptb\.)?discord(?:app)?\.com/api/webhooks/\d{5,}/[A-Za-z0-9_-]{30,}"),
    Kind((), rf"{_DIGITS_IN_B64}\.{_B64}{{6}}\.{_B64}{{27,40}}" + _ENDS),  # Discord
    Kind((), rf"\d{{8,10}}:AA{_B64}{{32,33}}" + _ENDS),  # Telegram
    Kind(("SG.",), r"[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{32,}"),
    Kind((), rf"{_NOT_GLUED}key-[0-9a-f]{{32}}" + _ENDS),  # Mailgun
    Kind((), r"[0-9a-f]{32}-[0-9a-f]{8}-[0-9a-f]{8}" + rf"(?!{_B64})"),
    Kind((), r"[0-9a-f]{32}-us\d{1,2}" + _ENDS),  # Mailchimp
    Kind(("xkeysib-",), r"[0-9a-f]{64}-[A-Za-z0-9]{16}"),
    Kind(("SK",), r"[0-9a-f]{32}" + _ENDS),  # Twilio
    # money and shops
    Kind(("sk_live_", "sk_test_", "rk_live_", "rk_test_"), r"[A-Za-z0-9]{10,}"),
    Kind(("whsec_",), r"[A-Za-z0-9+/=]{24,}"),
    Kind(("shpat_", "shpca_", "shppa_", "shpss_"), r"[A-Fa-f0-9]{32}"),
    Kind(("sq0atp-", "sq0csp-"), rf"{_B64}{{22,43}}"),
    Kind(("EAAA",), rf"(?=[A-Za-z_-]*[0-9]){_B64}{{60}}(?![A-Za-z0-9+/=_-])"),
    # vaults, logs and the rest
    Kind(("hvs.", "hvb.", "hvr."), rf"{_B64}{{24,}}"),
    Kind(("AGE-SECRET-KEY-1",), r"[0-9A-Z]{58}"),
    Kind(("ops_eyJ",), r"[A-Za-z0-9+/=_-]{100,}"),
    Kind(("dp.pt.", "dp.st.", "dp.ct.", "dp.sa."), r"[A-Za-z0-9_.-]{40,}"),
    Kind(("NRAK-",), r"[A-Z0-9]{27}"),
    Kind(("glsa_", "glc_"), r"[A-Za-z0-9+/=_]{32,}"),
    Kind(("sntrys_", "sntryu_"), r"[A-Za-z0-9+/=_-]{40,}"),
    Kind(("figd_",), rf"{_B64}{{40}}"),
    Kind(("ntn_", "secret_"), r"[A-Za-z0-9]{40,}"),  # Notion
    Kind((), r"pat[A-Za-z0-9]{14}\.[0-9a-f]{64}"),  # Airtable
    Kind(("tskey-auth-", "tskey-api-", "tskey-client-"), r"[A-Za-z0-9]{6,}(?:CNTRL)?-[A-Za-z0-9]{16,}"),
    Kind(("eyJ",), rf"{_B64}{{10,}}\.(?:{_B64}{{10,}}(?:\.{_B64}*){{1,3}}|{_B64}{{200,}})"),  # JSON Web Tokens
)

_PLACEHOLDER: Final = (
    r"(?:(?:my|your|the|db|super|strong)[-_]?){0,2}(?:password|passwd|pass|pwd|pw|secret|token|user(?:name)?|root|admin|guest"
    r"|postgres|example|changeme|foo|bar|x+|\*+|\.+|-+|\d{0,3})\d{0,3}@"
)


def _alternatives() -> Iterator[str]:
    for kind in KINDS:
        starts = "|".join(map(re.escape, kind.starts))
        yield f"(?:{starts}){kind.rest}" if len(kind.starts) != 1 and starts else starts + kind.rest


CREDENTIAL: Final = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(_alternatives())})")
"""Any of ``KINDS``."""

LOGIN: Final = re.compile(rf"(?<=://)[^\s/@:?#]{{0,128}}:(?!(?i:{_PLACEHOLDER}))[^\s/@]{{1,256}}(?=@)")
"""Name and password of a URL, but for those that manuals write."""

AWS_SECRET: Final = re.compile(r"(?<![A-Za-z0-9+/])(?=[A-Za-z0-9+/]*[G-Zg-z+/])[A-Za-z0-9+/]{40}(?![A-Za-z0-9+/=])")
"""What may be a secret key of AWS, which looks like nothing in particular: it is one where ``AWS_SECRET_NAME`` stands before,
a name or the key's id."""
AWS_SECRET_NAME: Final = re.compile(r"(?:(?i:secret|aws)[\w .-]{0,24}|(?:AKIA|ASIA)[A-Z0-9]{16})\W{0,16}\Z")

BEARER: Final = re.compile(r"(?i:\bbearer)\W{1,8}\Z")
BEARER_TOKEN: Final = re.compile(r"(?<![A-Za-z0-9._~+/-])(?=(?:[A-Za-z._~+/-]*[0-9]){2})[A-Za-z0-9._~+/-]{20,}=*")
"""What is a token where ``BEARER`` stands before. With fewer digits it is the placeholder of a manual."""

PRIVATE_KEY: Final = re.compile(r"-----BEGIN (?:[A-Z0-9]{2,12} ){0,2}PRIVATE KEY(?: BLOCK)?-----")
"""What stands before a private key; its lines follow."""
_KEY_LINES: Final = r"(?:\s|\\[nr]|[A-Za-z0-9+/=:,-])"
PRIVATE_KEY_LINES: Final = re.compile(rf"{PRIVATE_KEY.pattern}(?:{_KEY_LINES}*?-----END [A-Z0-9 ]*-----|{_KEY_LINES}*)")
"""Both, in a text of which only its words count."""
