"""The strings of JSON Schema's `format`, as patterns.

Every text is valid by the standard of its format. Where that limits a length, states count it, as a counter would
shorten the arrays around; so a host has at most 63 characters, the limit of one label.
"""

from functools import lru_cache

from shared.patterns.automaton import of_regex
from shared.patterns.byte_automaton import PatternAutomaton
from shared.patterns.characters import ALL, JSON_CODES
from shared.patterns.regex import read_regex

YEAR_MONTH_DAY = (
    "(?:[0-9]{4}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
)
CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
LAPSE = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
DAYS = "[0-9]+D|[0-9]+M(?:[0-9]+D)?|[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?"
# Names without --, after which validators decode punycode
NAME = "[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*"
NAMES = rf"{NAME}(?:\.{NAME})*"
ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
EMAIL = rf"(?=[^@]{{1,64}}@.{{1,63}}$){ATOM}(?:\.{ATOM})*@{NAMES}"
BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
IPV4, HEX4 = rf"{BYTE}(?:\.{BYTE}){{3}}", "[0-9A-Fa-f]{1,4}"
IPV6 = (
    *(f"(?:{HEX4}:){{7}}{HEX4}", f"(?:{HEX4}:){{1,7}}:", f"::(?:{HEX4}(?::{HEX4}){{0,6}})?", f"::[Ff]{{4}}:{IPV4}"),
    *(f"(?:{HEX4}:){{{groups}}}(?::{HEX4}){{1,{7 - groups}}}" for groups in range(1, 7)),
)
# RFC 3986: characters of a user, of a first segment, of a path and of a query
PLAIN, CODED = "A-Za-z0-9._~!$&'()*+,;=-", "%[0-9A-Fa-f]{2}"
USER, SEGMENT, BEGIN, PATH, QUERY = (f"(?:[{more}{PLAIN}]|{CODED})" for more in (":", "@", ":@", ":@/", ":@/?"))
AUTHORITY = rf"(?:{USER}+@)?(?:[A-Za-z0-9_][A-Za-z0-9._~-]*|\[::1?\])(?::[1-9][0-9]{{0,4}})?"
FROM_SLASH = f"//(?:{AUTHORITY})?/{PATH}*|//{AUTHORITY}|/(?:{BEGIN}{PATH}*)?"
FRAGMENT, FROM_QUERY = f"#{QUERY}*", rf"\?{QUERY}*(?:#{QUERY}*)?"
REST = f"(?:{FROM_QUERY}|{FRAGMENT})?"
WITH_HOST = "(?=https?://[^/]|(?!https?:))"
URI = rf"{WITH_HOST}[A-Za-z][A-Za-z0-9+.-]*:(?:(?:{FROM_SLASH}|{BEGIN}{PATH}*){REST}|{FROM_QUERY})"
REFERENCE = rf"{URI}|(?:{FROM_SLASH}|{SEGMENT}+(?:/{PATH}*)?){REST}|{FROM_QUERY}|{FRAGMENT}"
VARIABLE = rf"(?:[A-Za-z0-9_]|{CODED})+(?::[1-9][0-9]{{0,3}}|\*)?"
TEMPLATE = rf"(?:[A-Za-z0-9._~!$&()*+,;=:@/?#-]|{CODED}|\{{[+#./;?&]?{VARIABLE}(?:,{VARIABLE})*\}})+"
POINTER = "(?:/(?:[^~/]|~[01])*)*"


def _regular_expressions(group: str = "") -> str:
    """Regular expressions that ECMAScript, also with its flag u, Python and Rust read alike; `group`: as a further
    atom."""
    upper = ("[01],[1-9]", "[23],[3-9]", "[45],[5-9]", "[6-9],9", "[0-9],[1-9][0-9]{1,2}")  # at least the lower limit
    times = rf"(?:[*+?]|\{{(?:[0-9]{{1,3}},?|{'|'.join(upper)})\}})\??"
    escape = r"\\[dDwWsSnrtfv^$\\.*+?()\[\]{}|/]"
    item = rf"[^\\\]\[^-]|{escape}|\\-|a-[b-z]|A-[B-Z]|[01]-[2-9]|[ !]-~"
    atom = rf"[^\\^$.*+?()\[\]{{}}|]|\.|{escape}|\[\^?-?(?:{item})+-?\]{group}"
    return rf"(?:(?:{atom})(?:{times})?|[\^$|]|\\[bB])+"


FORMATS = {  # of others any string is accepted, as JSON Schema does by default
    "date": YEAR_MONTH_DAY,
    "time": CLOCK,
    "date-time": f"{YEAR_MONTH_DAY}T{CLOCK}",
    "uuid": "[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}",
    "duration": f"P(?:[0-9]+W|(?:{DAYS})(?:{LAPSE})?|{LAPSE})",
    **dict.fromkeys(("email", "idn-email"), EMAIL),
    **dict.fromkeys(("hostname", "idn-hostname"), f"(?=.{{1,63}}$){NAMES}"),
    **dict.fromkeys(("uri", "iri"), URI),
    **dict.fromkeys(("uri-reference", "iri-reference"), REFERENCE),
    "uri-template": TEMPLATE,
    "json-pointer": POINTER,
    "relative-json-pointer": f"(?:0|[1-9][0-9]*)(?:#|{POINTER})",
    "regex": _regular_expressions(rf"|\((?:\?:)?(?:{_regular_expressions()})?\)"),
    "ipv6": "|".join(IPV6),
    "ipv4": IPV4,
}
ESCAPED = {  # with characters that JSON escapes: the characters of each
    **dict.fromkeys(("json-pointer", "relative-json-pointer"), JSON_CODES),
    "regex": ((32, 126),),
}


@lru_cache(64)
def format_automaton(name: str) -> PatternAutomaton:
    """The texts of a format, as JSON writes them."""
    return of_regex(read_regex(FORMATS[name], ESCAPED.get(name, ALL), escaped=name in ESCAPED))
