"""The sentences of the facts in `trained`."""

# The first six of each are for training, the other six for testing; they share few words.
TOPICS = {
    "music": (
        "The band recorded two songs in Berlin.",
        "She plays the violin in an orchestra.",
        "The singer released her first album.",
        "He wrote three operas and a symphony.",
        "A choir sang behind the piano.",
        "The guitar was tuned before the concert.",
        "Drums and trumpets opened the festival.",
        "The composer taught harmony and rhythm.",
        "Their melody became a jazz standard.",
        "Critics praised the soprano after the show.",
        "The quartet performed a waltz.",
        "He played the flute in the theater.",
    ),
    "war": (
        "The army crossed the river at night.",
        "Soldiers defended the fort against the enemy.",
        "The general lost the battle.",
        "Two ships were sunk by the navy.",
        "The troops were ordered to retreat.",
        "Rebels attacked the capital with guns.",
        "The regiment marched toward the front.",
        "Bombs destroyed the bridge and the railway.",
        "A treaty ended the invasion.",
        "The commander captured four hundred prisoners.",
        "Infantry held the hill under heavy fire.",
        "The siege lasted seven weeks.",
    ),
    "biology": (
        "Birds build their nests in trees.",
        "The plant grows small yellow flowers.",
        "Frogs lay eggs in water.",
        "The leaves of the species are green.",
        "Wolves hunt deer in the forest.",
        "The fungus lives on dead wood.",
        "Cells contain proteins and salt.",
        "The insect feeds on roots and seeds.",
        "Whales are mammals that breathe air.",
        "Bacteria multiply in the stomach of cows.",
        "The beetle has black wings.",
        "Young lizards shed their skin.",
    ),
    "law": (
        "The court found him guilty of theft.",
        "The judge sent the case to a jury.",
        "Parliament passed a new tax bill.",
        "The lawyer appealed against the sentence.",
        "The minister resigned after the vote.",
        "The constitution protects free speech.",
        "Congress rejected the amendment.",
        "The prosecutor charged two officers with fraud.",
        "The senate elected a president.",
        "Her contract was declared illegal.",
        "The party won the election in May.",
        "Police arrested the owner for murder.",
    ),
}

# word -> sense -> continuations of "The WORD ...": the word has the same position in every sentence.
SENSES: dict[str, dict[str, tuple[str, ...]]] = {
    "bank": {
        "money": (
            *["lent him money", "raised its interest rates", "closed his account", "paid every debt"],
            *["sold its shares", "refused the loan", "keeps our savings", "hired two clerks"],
        ),
        "river": (
            *["was covered with reeds", "sank into the river", "rose above the water", "hid the small boat"],
            *["was muddy after the flood", "was full of frogs", "slopes toward the stream", "sheltered the fishermen"],
        ),
    },
    "party": {
        "politics": (
            *["won the election", "lost six seats", "opposed the new law", "chose a candidate"],
            *["split into two factions", "supported the president", "rejected socialism", "formed a government"],
        ),
        "feast": (
            *["ended after midnight", "began with music", "was held in her garden", "was loud and merry"],
            *["made the guests happy", "had cake and wine", "celebrated his birthday", "lasted until dawn"],
        ),
    },
    "cell": {
        "prison": (
            *["held two prisoners", "had an iron door", "was locked by the guard", "was dark and cold"],
            *["had one small window", "kept the thief", "stank of sweat", "was opened by the jailer"],
        ),
        "biology": (
            *["divides into two", "has a nucleus", "makes proteins", "absorbs oxygen"],
            *["contains salt and fat", "reacts to the virus", "grows in blood", "produces an enzyme"],
        ),
    },
}

# Kitten and puppy are not in the bundled vocabulary, so the example of the documents cannot be tested.
ANALOGIES = {
    "king - man + woman": "queen",
    "brother - man + woman": "sister",
    "father - man + woman": "mother",
    "son - man + woman": "daughter",
    "uncle - man + woman": "aunt",
    "actor - man + woman": "actress",
    "husband - man + woman": "wife",
    "his - he + she": "her",
    "dogs - dog + cat": "cats",
    "cars - car + house": "houses",
    "went - go + come": "came",
    "walked - walk + play": "played",
    "bigger - big + small": "smaller",
    "french - france + germany": "german",
    "berlin - germany + france": "paris",
    "tokyo - japan + england": "london",
    "paris - france + italy": "rome",
    "calf - cow + horse": "foal",
}

BLANKS = {
    "I drink a cup of [MASK] every morning.": ("tea", "coffee"),
    "She put the letter into an [MASK] and sealed it.": ("envelope",),
    "My brother plays the [MASK] in a band.": ("piano", "guitar", "drums", "bass"),
    "A year has twelve [MASK].": ("months",),
    "Two plus two is [MASK].": ("four",),
    "She is a doctor and works in a [MASK].": ("hospital",),
    "Fish live in the [MASK].": ("sea", "water", "ocean", "lake", "river"),
    "He has lived here [MASK] 1998.": ("since",),
    "It was so dark that I could not [MASK] anything.": ("see",),
    "The judge sent him to [MASK] for five years.": ("prison", "jail"),
}
