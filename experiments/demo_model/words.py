"""The words of the generated problems: people, things, and verb forms."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb: "I buy", "she buys", "she bought", "Buying"."""

    base: str
    third: str
    past: str
    gerund: str


def _split(text: str) -> list[str]:
    return text.split()


def _verbs(text: str) -> list[Verb]:
    return [Verb(*forms.split("/")) for forms in text.split(", ")]


SHE = _split("Mia Anna Lisa Sara Emma Olivia Maria Julia Nina Kate Alice Lucy Zoe Ella Amy Grace Lena Rosa Jane Susan")
HE = _split("Tom Ben Sam John Leo Max Paul Jack David Peter Adam Noah Liam Omar Carlos Mike Bob James Daniel Ali")
SHOPS = ("A shop", "The shop", "The school", "A library")
WORKERS = ("A farmer", "The teacher", "A baker", "My friend")

FOODS = _split(
    "apples pears oranges bananas cookies candies eggs lemons peaches cherries muffins plums grapes berries nuts "
    "cupcakes tomatoes potatoes carrots sweets mangoes strawberries"
)
THINGS = _split(
    "books marbles stickers cards coins pencils flowers toys balloons shells stamps pens stones beads buttons balls "
    "tickets cars blocks roses crayons cups plates"
)
ITEMS = FOODS + THINGS
CONTAINERS = _split("boxes bags baskets jars shelves packs trays rows")
GROUPS = {
    "friends": "friend",
    "children": "child",
    "boxes": "box",
    "bags": "bag",
    "plates": "plate",
    "baskets": "basket",
    "students": "student",
    "people": "person",
    "kids": "kid",
}

ADDING = _verbs(
    "buy/buys/bought/Buying, find/finds/found/Finding, get/gets/got/Getting, pick/picks/picked/Picking, "
    "receive/receives/received/Receiving, collect/collects/collected/Collecting, win/wins/won/Winning, "
    "add/adds/added/Adding, make/makes/made/Making"
)
TAKING = _verbs(
    "sell/sells/sold/Selling, lose/loses/lost/Losing, give away/gives away/gave away/Giving away, "
    "use/uses/used/Using, drop/drops/dropped/Dropping, break/breaks/broke/Breaking, "
    "throw away/throws away/threw away/Throwing away, donate/donates/donated/Donating"
)
[EATING, GIVING, KEEPING, SPLITTING, GETTING, DOUBLING, TRIPLING] = _verbs(
    "eat/eats/ate/Eating, give/gives/gave/Giving, keep/keeps/kept/Keeping, split/splits/split/Splitting, "
    "get/gets/got/Getting, double/doubles/doubled/Doubling, triple/triples/tripled/Tripling"
)
SHARING = _verbs("share/shares/shared/Sharing, divide/divides/divided/Dividing, split/splits/split/Splitting")
SHARE_NAMES = {2: "half", 3: "a third", 4: "a quarter"}
SIGN_NAMES = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}
NUMBER_NAMES = _split("zero one two three four five six seven eight nine ten eleven twelve")
