"""What is told of the words that are heard."""

import pytest

from training.ears import said_twice


@pytest.mark.parametrize("said, heard, twice", [
    ("Good morning.", "Good morning. Good morning.", True),
    ("The train leaves at seven.", "The train leaves at seven, the rain leaves a seven.", True),
    ("He left. She stayed at home. All was quiet.", "He left, she stayed at home. She stayed at home. All was quiet.",
     True),
    ("He left. She stayed at home.", "He left. She stayed at home. He left. She stayed home.", True),
    # Heard in more words than were said, as Whisper hears rare ones.
    ("A mucoid substance.", "I'm a co-ed substance.", False),
    ("Aseptic surgical techniques.", "A-ceptics are equal techniques.", False),
    ("Very, very good.", "Very, very good.", False),
    ("Hello.", "Hello there.", False), ("Hello.", "", False), ("", "Hello.", False)])
def test_only_what_comes_again_is_said_twice(said, heard, twice):
    assert said_twice(said, heard) is twice
