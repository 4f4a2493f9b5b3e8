"""Names and things that tasks are about. No word of a pool is part of another one's, or of a template."""

from __future__ import annotations

NAMES = (
    "Mia",
    "Tom",
    "Ana",
    "Ben",
    "Eva",
    "Leo",
    "Ida",
    "Max",
    "Zoe",
    "Sam",
    "Nora",
    "Paul",
    "Lucy",
    "Oscar",
)
CITIES = (
    "Rome",
    "Paris",
    "London",
    "Berlin",
    "Madrid",
    "Tokyo",
    "Cairo",
    "Oslo",
    "Lima",
    "Boston",
    "Vienna",
    "Dublin",
)
COLOURS = ("red", "blue", "green", "yellow", "black", "white", "purple", "brown")
THINGS = ("apples", "books", "coins", "cards", "pens", "eggs", "shells", "stamps", "balls", "cookies")
ANIMALS = ("dog", "horse", "rabbit", "cow", "sheep", "duck", "goat", "mouse", "lion", "tiger", "wolf", "frog")
FRUITS = ("apple", "pear", "plum", "lemon", "peach", "cherry", "mango", "grape", "melon", "fig")
JOBS = ("doctor", "teacher", "farmer", "baker", "pilot", "lawyer", "painter", "nurse", "driver", "writer")
SHORT = (
    "cat",
    "sun",
    "map",
    "box",
    "pig",
    "hat",
    "bus",
    "key",
    "cup",
    "bed",
    "fish",
    "tree",
    "lamp",
    "bird",
    "gold",
)
MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
