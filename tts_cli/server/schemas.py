"""What requests may hold. Ranges and meanings of speech fields come from `SpeechRequest`, where the engine reads them.

JSON is taken strictly (`"40"` is no number); the fields of a form are text and read as what they stand for.
"""

from dataclasses import fields
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from tts_cli.audio.encode import FORMATS
from tts_cli.engine import SpeechRequest

# Names of OpenAI's voices, for programs that must send one; all of them mean the default voice.
STOCK_VOICES = ("alloy", "ash", "ballad", "coral", "echo", "fable", "nova", "onyx", "sage", "shimmer", "verse", "marin",
                "cedar")
MAX_FRAMES = 32_768  # positions in the context of Qwen3-TTS: 43 minutes
_LONG = 10_000       # characters of instructions and transcripts
# OpenAI's formats first; the others as the command line writes them.
_FORMATS = tuple(dict.fromkeys(("mp3", "opus", "flac", "wav", "pcm", *FORMATS)))
_RULES = {f.name: f.metadata for f in fields(SpeechRequest) if f.metadata}


Text = Field(description="The text to speak; at least one letter or digit")
Format = Literal[_FORMATS]
_FORMAT_HELP = ("Audio format: wav is 16-bit with a header, pcm the same samples without (little-endian, mono, at the "
                "rate of X-Sample-Rate), f32 32-bit floats; aac cannot be encoded here")


def _speech(name: str, help: str = "", **more):
    rule = _RULES[name]
    return Field(default=None, description=help or rule["help"][0].upper() + rule["help"][1:], ge=rule["low"],
                 gt=rule["above"], le=more.pop("le", rule["high"]), **more)


class SpeechFields(BaseModel):
    """How to speak; every field may be left out. `null` means the same."""

    model_config = ConfigDict(extra="forbid")

    lang: str | None = Field(None, description="Language by name or two-letter code, or auto", max_length=32)
    voice: str | None = Field(
        None, min_length=1, max_length=200,
        description="A voice of GET /v1/audio/voices, a mix such as NAME:0.7,NAME:0.3 where the model mixes, or "
                    "default; OpenAI's stock names (alloy ...) mean default, too")
    speaker_ref_b64: str | None = Field(
        None, description="A recording of the voice to clone: an audio file (WAV, FLAC, MP3, Ogg ...) in base64")
    ref_text: str | None = Field(
        None, description="What the recording says: a closer clone", min_length=1, max_length=_LONG)
    instruct: str | None = Field(
        None, description="How to speak, or what voice to speak with, in words, for models that follow instructions",
        max_length=_LONG)
    temperature: float | None = _speech("temperature")
    top_k: int | None = _speech("top_k", le=2**31 - 1)
    top_p: float | None = _speech("top_p")
    repeat_penalty: float | None = _speech("repeat_penalty", "Penalty on codes already spoken, over the whole text")
    sub_temperature: float | None = _speech("sub_temperature")
    sub_top_k: int | None = _speech("sub_top_k", le=2**31 - 1)
    sub_top_p: float | None = _speech("sub_top_p")
    n_predict: int | None = _speech("max_frames", "Stop after this many frames of 80 ms; by default it grows with the "
                                                  "text", le=MAX_FRAMES)
    seed: int | None = _speech("seed", "Same seed, same samples; random when left out")
    speed: float | None = _speech("speed", "How fast to speak (Kokoro)")

    @field_validator("top_k", "sub_top_k", "n_predict", "seed", mode="before")
    @classmethod
    def _whole(cls, value: object) -> object:
        """JSON's 6.0 is a whole number, too; some languages write no other."""
        return int(value) if isinstance(value, float) and value.is_integer() else value


class TtsBody(SpeechFields):
    """`POST /tts`. One of `input` and `prompt` is needed."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["input"]}, {"required": ["prompt"]}]})

    input: str | None = Field(None, description=Text.description)
    prompt: str | None = Field(None, description="Another name of input")
    response_format: Format | None = Field("wav", description=_FORMAT_HELP)
    stream: bool | None = Field(False, description="Send audio while it is made")


class VoiceId(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: Annotated[str, Field(min_length=1, max_length=200, description="The name of a voice")]


class SpeechBody(SpeechFields):
    """`POST /v1/audio/speech`: OpenAI's fields, and those of /tts."""

    model: str | None = Field(None, description="Accepted and not used: one model is loaded", max_length=200)
    input: str = Field(description=Text.description)
    voice: Annotated[str, Field(min_length=1, max_length=200)] | VoiceId | None = Field(
        None, description=SpeechFields.model_fields["voice"].description)
    instructions: str | None = Field(None, description="Another name of instruct", max_length=_LONG)
    response_format: Format | None = Field("mp3", description=_FORMAT_HELP)
    stream_format: Literal["audio", "sse"] | None = Field(
        "audio", description="audio: the bytes; sse: events speech.audio.delta with base64 and speech.audio.done")
    stream: bool | None = Field(
        True, description="false: answer when all is made, with exact headers and X-Finish-Reason")


class AnyMessage(BaseModel):
    """What says which of the messages of a WebSocket's client it is."""

    type: Literal["start", "text", "flush", "end", "cancel"]


class StartMessage(SpeechFields):
    """WebSocket, from the client, once and first: how to speak."""

    type: Literal["start"]
    response_format: Format | None = Field("pcm", description=_FORMAT_HELP)


class TextMessage(BaseModel):
    """WebSocket, from the client: the next piece of text, such as a token. Sentences are spoken when they are whole."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]
    text: str


class ControlMessage(BaseModel):
    """WebSocket, from the client. flush: speak what is there, whole sentence or not. end: no more text will come;
    the server speaks the rest, says `done` and closes. cancel: be silent at once; the server says `done` and closes."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["flush", "end", "cancel"]


class StartedMessage(BaseModel):
    """WebSocket, from the server, before the first audio. Audio comes in binary messages, one stream of bytes."""

    type: Literal["started"] = "started"
    request_id: str
    sample_rate: int = Field(description="Hz")
    content_type: str


class DoneMessage(BaseModel):
    """WebSocket, from the server: behind the last audio."""

    type: Literal["done"] = "done"
    finish_reason: Literal["eos", "limit", "cancelled"]
    audio_seconds: float
    left_out: list[str] = Field([], description="Words that the model does not read")


class VoiceEntry(BaseModel):
    id: str = Field(description="What `voice` takes")
    name: str


class VoiceList(BaseModel):
    object: Literal["list"] = "list"
    data: list[VoiceEntry]
    default: str = Field(description="What speaks when no voice is named; \"default\" where that has no name")
    voices: list[str] = Field(description="The names alone")


class ModelEntry(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelEntry]


class Health(BaseModel):
    status: Literal["ok", "loading", "failed"]
