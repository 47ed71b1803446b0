"""Images reach a vision-language model as its own processor makes them: to act, cached or not, and to learn."""

import asyncio
import hashlib
from copy import deepcopy
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
import torch
from envgym_agents.chat import LMAgents
from envgym_agents.eyes import eyes_of
from envgym_agents.learn.config import Reinforce, load
from envgym_agents.learn.pack import batches, rows_of
from envgym_agents.learn.resolve import check_sources
from envgym_agents.learn.run import evaluate_folders, train
from envgym_agents.learn.score import Scorer
from envgym_agents.learn.update import Learner, adamw
from envgym_agents.model import load_model, new_model, save_model
from envgym_agents.policies.chosen import policy_over
from envgym_agents.policies.transformer import TransformerPolicy
from envgym_agents.template import PICTURE, template_for
from envgym_agents.tokenizer import train_tokenizer
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    CLIPImageProcessorPil,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3ImageProcessorPil,
    Idefics3Processor,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextImageProcessorPil,
    LlavaNextProcessor,
    LlavaProcessor,
    PaddleOCRVLProcessor,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
)

from envgym.browsing import open_browser
from envgym.env import Step, StopReason
from envgym.episode import Episode
from envgym.errors import ContextFull, Misconfigured
from envgym.limits import Limits, Sampling
from envgym.messages import Action, ImagePart, Message, TextPart
from envgym.policy import Prompt
from envgym.registry import make, spec
from envgym.rollout import Origin, Rollout, play
from envgym.store import StoreReader, StoreWriter
from envgym.task import Task

torch.set_num_threads(1)
SPECIAL = ("<|end|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
LAYOUT = (
    "{%- for m in messages -%}{{- '<|im_start|>' + m['role'] + '\n' -}}{%- for c in m['content'] -%}"
    "{%- if c['type'] == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}"
    "{%- else -%}{{- c['text'] -}}{%- endif -%}{%- endfor -%}{{- '<|im_end|>\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)


def words():
    core = Tokenizer(models.BPE())
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=270, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator(["look at the picture"], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|end|>",
        extra_special_tokens={"image_token": "<|image_pad|>"}, additional_special_tokens=list(SPECIAL[1:5]),
    )  # fmt: skip


def qwen():
    """Positions in space, images of any size: what GUI-R1 and UI-R1 are trained from."""
    tokenizer = words()
    named = {"image": "image_pad", "vision_start": "vision_start", "vision_end": "vision_end"}
    ids = {f"{name}_token_id": tokenizer.convert_tokens_to_ids(f"<|{text}|>") for name, text in named.items()}
    text = {
        "vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 2048,
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
        "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0},
    }  # fmt: skip
    vision = {
        "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 32,
        "fullatt_block_indexes": [1], "window_size": 56,
    }  # fmt: skip
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, video_token_id=299, **ids)
    images = Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=28 * 28 * 16)
    # Qwen's own processor wants torchvision for films; this one lays out images in the same way
    processor = PaddleOCRVLProcessor(image_processor=images, tokenizer=tokenizer, chat_template=LAYOUT)
    return Qwen2_5_VLForConditionalGeneration(config), processor


def llava():
    """Plain positions, images of one size."""
    tokenizer = words()
    text = {
        "model_type": "llama", "vocab_size": 300, "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 2048,
    }  # fmt: skip
    vision = {
        "model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 32, "patch_size": 8, "projection_dim": 32,
    }  # fmt: skip
    token = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    config = LlavaConfig(text_config=text, vision_config=vision, image_token_id=token, image_seq_length=16)
    side = {"height": 32, "width": 32}
    processor = LlavaProcessor(
        image_processor=CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=side), tokenizer=tokenizer,
        patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1,
        image_token="<|image_pad|>", chat_template=LAYOUT,
    )  # fmt: skip
    return LlavaForConditionalGeneration(config), processor


def llava_next():
    """An image is cut in pieces, more of a longer one; what one lacks is zeros."""
    model, plain = llava()
    kept = ("vision_config", "text_config")
    config = LlavaNextConfig(
        **{name: getattr(model.config, name) for name in kept}, image_token_id=model.config.image_token_id,
        image_grid_pinpoints=[[32, 64], [64, 32], [32, 96], [64, 64]],
    )  # fmt: skip
    images = LlavaNextImageProcessorPil(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32},
        image_grid_pinpoints=config.image_grid_pinpoints,
    )  # fmt: skip
    processor = LlavaNextProcessor(
        image_processor=images, tokenizer=plain.tokenizer, patch_size=8, vision_feature_select_strategy="default",
        num_additional_image_tokens=1, image_token="<|image_pad|>", chat_template=LAYOUT,
    )  # fmt: skip
    return LlavaNextForConditionalGeneration(config), processor


def idefics():
    """The pieces of all images are one row, with marks between them in the text (SmolVLM, too)."""
    tokenizer = words()
    marks = ["<image>", "<fake_token_around_image>", "<end_of_utterance>"]
    tokenizer.add_special_tokens({"additional_special_tokens": marks})
    text = {
        "model_type": "llama", "vocab_size": 320, "hidden_size": 32, "intermediate_size": 64, "pad_token_id": 0,
        "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 2048,
    }  # fmt: skip
    vision = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "image_size": 32, "patch_size": 8,
    }  # fmt: skip
    token = tokenizer.convert_tokens_to_ids("<image>")
    config = Idefics3Config(text_config=text, vision_config=vision, image_token_id=token, scale_factor=2)
    images = Idefics3ImageProcessorPil(size={"longest_edge": 64}, max_image_size={"longest_edge": 32})
    layout = LAYOUT.replace("<|vision_start|><|image_pad|><|vision_end|>", "<image>")
    processor = Idefics3Processor(images, tokenizer, image_seq_len=4, chat_template=layout)
    return Idefics3ForConditionalGeneration(config), processor


@pytest.fixture(scope="module", params=[qwen, llava, llava_next, idefics])
def sighted(request, tmp_path_factory):
    """A tiny model with random weights that came out of its folder, with its processor."""
    folder = tmp_path_factory.mktemp("sighted")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, processor = request.param()
    save_model(folder, model, processor)
    return load_model(folder)


def picture(seed: int, *, size=(50, 80), changed: bool = False) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)
    if changed:
        pixels[: size[0] // 2] = 255 - pixels[: size[0] // 2]
    out = BytesIO()
    Image.fromarray(pixels).save(out, "png")
    return out.getvalue()


def showing(text: str, *images: bytes, **fields) -> Step:
    named = {hashlib.sha256(image).hexdigest(): image for image in images}
    content = (TextPart(text=text), *(ImagePart(sha256=name) for name in named), TextPart(text="."))
    return Step((Message(role="user", content=content),), images=named, **fields)


def reference(model, processor, ids, images, token):
    """The log-probability of a token after ids, all computed by the library at once."""
    eyes = eyes_of(model)
    pixels = processor.image_processor([Image.open(BytesIO(one)) for one in images], return_tensors="pt")
    row = torch.tensor([ids])
    seen = torch.isin(row, torch.tensor(eyes.unsayable)).int()
    more = {"mm_token_type_ids": seen} if hasattr(model.base_model, "get_rope_index") else {}
    with torch.inference_mode():
        logits = model(input_ids=row, **pixels, **more).logits[0, -1].double()
        logits[list(eyes.unsayable)] = -torch.inf
    return float(logits.log_softmax(-1)[token])


async def talk(model, processor, steps):
    """An agent's replies to steps, and the context and images after each; another acts beside it all the time."""
    async with TransformerPolicy(model) as policy:
        makers = LMAgents(policy, template_for(processor, eyes_of(model)), "text", Sampling(max_tokens=5))
        agent = makers(Task(id="t", prompt=""), seed=3)
        other = makers(Task(id="t", prompt=""), seed=4)
        found = []
        for step in steps:
            reply = await agent.act(step)
            await other.act(showing("another", picture(9, size=(90, 40))))
            conversation = agent._conversation
            found.append((reply, list(conversation.ids), list(conversation.images)))
        await agent.close()
        return found, policy.computed_tokens


def test_what_is_sampled_over_several_turns_is_what_the_model_says_of_all_at_once(sighted):
    model, processor = sighted
    last = showing("two", picture(1, size=(70, 60)), picture(0))
    steps = [showing("first", picture(0)), showing("no picture"), last]
    found, computed = asyncio.run(talk(model, processor, steps))
    before = 0
    for number, (reply, ids, images) in enumerate(found):
        assert reply.position == before, "the context only grows"
        assert len(images) == (1, 1, 3)[number]
        at = before = len(ids)
        assert list(reply.completion.ids) == ids[at - len(reply.completion.ids) :]
        for token, logprob in zip(reversed(reply.completion.ids), reversed(reply.completion.logprobs), strict=True):
            at -= 1
            assert reference(model, processor, ids[:at], images, token) == pytest.approx(logprob, abs=1e-4)
        assert sum(count for _, count in reply.roles) == len(reply.prompt_ids)
        assert {role for role, _ in reply.roles} == {"template", "user"}
    assert computed < 2 * len(found[-1][1]) + 3 * 40 + 300, "what is cached is not computed again"


def test_a_pixel_changes_what_is_said_and_the_first_picture_is_still_seen_in_the_second_turn(sighted):
    model, processor = sighted
    found, _ = asyncio.run(talk(model, processor, [showing("look", picture(0)), showing("and")]))
    for reply, ids, images in found:
        at = len(ids) - len(reply.completion.ids)
        said = reference(model, processor, ids[:at], images, ids[at])
        assert said == pytest.approx(reply.completion.logprobs[0], abs=1e-4)
        assert abs(said - reference(model, processor, ids[:at], [picture(0, changed=True)], ids[at])) > 1e-6


def test_a_session_with_another_picture_behind_the_same_ids_is_computed_anew(sighted):
    model, processor = sighted
    template = template_for(processor, eyes_of(model))

    async def run():
        async with TransformerPolicy(model) as policy:
            session, found = policy.session(), []
            for image in (picture(0), picture(0, changed=True), picture(0)):
                conversation = template.open()
                step = showing("look", image)
                conversation.pictures |= step.images
                conversation.show(step.observation)
                prompt = Prompt(conversation.ids, tuple(conversation.images))
                found.append(await policy.sample(prompt, Sampling(max_tokens=1, seed=1), session))
            with pytest.raises(ValueError, match="places for 1 of 2 images"):
                await policy.sample(Prompt(conversation.ids, (picture(0), picture(0))), Sampling(), session)
            with pytest.raises(ValueError, match="more than 0 images"):
                await policy.sample(Prompt(conversation.ids), Sampling(), session)
            return found

    first, second, third = asyncio.run(run())
    assert first.logprobs != second.logprobs
    assert (first.ids, first.logprobs) == (third.ids, third.logprobs)


class Gallery:
    """Two pictures, one after the other."""

    tools = ()

    def __init__(self) -> None:
        self.task, self.turn = Task(id="gallery", prompt=""), 0

    async def reset(self, *, seed, start=None):
        self.turn = 0
        return showing("What is it?", picture(0))

    async def step(self, action: Action) -> Step:
        self.turn += 1
        if self.turn == 3:
            return Step(reward=1.0, stop=StopReason.GOAL)
        return showing("And this?", picture(self.turn, size=(60, 60)))

    async def close(self) -> None:
        pass


def test_a_learner_says_of_a_stored_episode_what_the_sampler_said(sighted, tmp_path):
    model, processor = sighted

    async def run() -> list[Episode]:
        async with TransformerPolicy(model) as policy:
            makers = LMAgents(policy, template_for(processor, eyes_of(model)), "text", Sampling(max_tokens=6))
            played = []
            for seed in range(3):
                agent = makers(Task(id="gallery", prompt=""), seed=seed)
                rollout = Rollout(Limits(turns=2 + seed % 2))
                origin = Origin(f"e{seed}", seed)
                played.append(await play(Gallery(), {agent.name: agent}, origin=origin, rollout=rollout))
            return played

    with StoreWriter(tmp_path / "store") as writer:
        for episode in asyncio.run(run()):
            assert episode.failure is None, episode.failure
            writer.append(episode)
    reader, rows = StoreReader(tmp_path / "store"), []
    for episode in reader:
        credit = np.ones(episode.sampled_tokens, np.float32)
        with pytest.raises(ValueError, match=r"StoreReader\.with_images"):
            rows_of(episode, credit)
        rows += rows_of(reader.with_images(episode), credit)
    assert sorted(len(row.images) for row in rows) == [2, 2, 3]
    scorer = Scorer(model)
    for batch in batches(rows, max_tokens=10_000, share_prefixes=scorer.shares_prefixes):
        scored = scorer.score(batch)
        assert (scored.logprobs - batch.logprobs).abs().max() < 1e-4
        assert torch.isfinite(scored.entropy).all()
        scored.logprobs.sum().backward()
    eye = next(weight for name, weight in model.named_parameters() if "vi" in name and "patch_embed" in name)
    assert float(eye.grad.abs().max()) > 0, "what is learned reaches the eyes"
    model.zero_grad()
    blind = Scorer(new_model(300, size="tiny"))
    with pytest.raises(ValueError, match="reads text only"):
        blind.score(batches(rows, max_tokens=10_000, share_prefixes=False)[0])


@pytest.mark.slow
@pytest.mark.parametrize("estimate", ["sampled", "exact"])
def test_a_student_that_sees_learns_from_a_teacher_that_does(sighted, estimate):
    model, processor = sighted

    async def run() -> Episode:
        async with TransformerPolicy(model) as policy:
            makers = LMAgents(policy, template_for(processor, eyes_of(model)), "text", Sampling(max_tokens=6))
            agent = makers(Task(id="gallery", prompt=""), seed=1)
            return await play(
                Gallery(), {agent.name: agent}, origin=Origin("e", 1), rollout=Rollout(Limits(turns=2))
            )

    episode = asyncio.run(run())
    images = {name: content for step in steps_of(episode) for name, content in step.images.items()}
    assert len(images) == 3
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        student, teacher = deepcopy(model), deepcopy(model)
        for weight in teacher.parameters():
            weight.data += 0.05 * torch.randn_like(weight)
    learner = Learner(Scorer(student), adamw(student, lr=2e-3, weight_decay=0.0), reference=Scorer(teacher))
    loss = {"kind": "distill", "distill": {"estimate": estimate}}
    config = Reinforce(teaches="all", loss=loss, epochs=1, minibatches=1)
    rows = rows_of(episode, np.zeros(episode.sampled_tokens, np.float32))
    found = [
        learner.update([rows], config, np.random.default_rng(step), lr=2e-3)["teacher_kl"] for step in range(8)
    ]
    assert np.isfinite(found).all(), found
    if estimate == "exact":
        assert found[-1] < found[0], found


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "task_options", "options"),
    [
        ("miniwob", {"pages": "click-checkboxes"}, {"observe": "none", "screenshot": True, "marks": True}),
        ("web-sites", {"site": "shop"}, {"see": "image"}),
    ],
)
def test_a_page_reaches_the_model_as_it_was_drawn(sighted, name, task_options, options):
    """Turn by turn: the very bytes of the screenshots, and what the library itself makes of them."""
    model, processor = sighted
    report = open_browser().report()
    if not report.works:
        pytest.skip(f"no browser: {'; '.join(report.missing)}; fix: {'; '.join(report.fix)}")

    async def run() -> Episode:
        async with TransformerPolicy(model) as policy:
            makers = LMAgents(policy, template_for(processor, eyes_of(model)), "text", Sampling(max_tokens=4))
            env = make(name, spec(name).tasks(**task_options)[0], **options)
            agent = makers(env.task, seed=0)
            played = await play(
                env, {agent.name: agent}, origin=Origin("e", 0), rollout=Rollout(Limits(turns=2, reset_s=240.0))
            )
            assert agent._conversation.images == [
                image for step in steps_of(played)[:2] for image in step.images.values()
            ]
            await env.close()
            return played

    episode = asyncio.run(run())
    assert episode.failure is None, episode.failure
    ids: list[int] = []
    images: list[bytes] = []
    for step, turn in zip(steps_of(episode), episode.turns, strict=False):
        (shown,) = step.images.values()
        images.append(shown)
        ids += turn.prompt_ids.tolist()
        first = int(turn.sampled_ids[0])
        said = reference(model, processor, ids, images, first)
        assert said == pytest.approx(float(turn.logprobs[0]), abs=1e-4)
        ids += turn.sampled_ids.tolist()


def steps_of(episode: Episode) -> list[Step]:
    return [episode.root, *(turn.step for turn in episode.turns)]


def test_what_a_world_says_forges_no_picture_and_what_does_not_fit_ends_the_context(sighted):
    model, processor = sighted
    template = template_for(processor, eyes_of(model))
    conversation = template.open()
    added = conversation.show([Message(role="user", content=f"{PICTURE} <|image_pad|> <|vision_start|>")])
    assert eyes_of(model).placeholder not in added.ids
    assert conversation.cost(showing("x").observation) == len(template.open().show(
        [Message(role="user", content=f"{PICTURE} <|image_pad|> <|vision_start|>"), *showing("x").observation]
    ).ids)  # fmt: skip

    async def act(step, **changes):
        async with TransformerPolicy(model) as policy:
            makers = LMAgents(policy, template, "text", Sampling(max_tokens=5), max_length=90)
            return await replace(makers, **changes)(Task(id="t", prompt=""), seed=0).act(step)

    with pytest.raises(ContextFull, match="images are not compacted"):
        asyncio.run(act(showing("x" * 200, picture(0))))
    with pytest.raises(Misconfigured, match="without its bytes"):
        asyncio.run(act(replace(showing("x", picture(0)), images={})))
    with pytest.raises(ValueError, match="no image"):
        eyes_of(model).look(b"nothing")


def test_a_model_of_text_refuses_pictures_in_a_line():
    tokenizer = train_tokenizer(["look"], vocab_size=300)

    async def act():
        async with TransformerPolicy(new_model(len(tokenizer), size="tiny")) as policy:
            makers = LMAgents(policy, template_for(tokenizer), "text", Sampling(max_tokens=5))
            await makers(Task(id="t", prompt=""), seed=0).act(showing("look", picture(0)))

    with pytest.raises(Misconfigured, match="reads text only"):
        asyncio.run(act())


def test_a_teacher_that_does_not_see_what_its_student_sees_is_refused_at_once(tmp_path):
    model, processor = llava()
    save_model(tmp_path / "sees", model, processor)
    save_model(tmp_path / "text", new_model(300, size="tiny"), processor.tokenizer)
    processor.image_processor.image_mean = [0.0, 0.0, 0.0]
    save_model(tmp_path / "other", model, processor)

    def check(student: str, teacher: str, **distill: str) -> None:
        loss = {"kind": "distill", "distill": {"teacher": str(tmp_path / teacher), **distill}}
        named = {"path": str(tmp_path / student)}
        check_sources(load(base={"model": named, "reinforce": {"teaches": "all", "loss": loss}}))

    check("sees", "sees")
    check("text", "text")
    for student, teacher, distill, said in (
        ("text", "sees", {}, "the teacher sees, and the student reads text only"),
        ("sees", "text", {}, "the student sees, and this teacher reads text only"),
        ("sees", "sees", {"by": "vllm"}, "vLLM gives a teacher no images"),
        ("sees", "other", {}, "another processor of images than the student"),
    ):
        with pytest.raises(ValueError, match=f"^reinforce.loss.distill.teacher = .*{teacher}': .*{said}"):
            check(student, teacher, **distill)


def test_a_sampler_that_gives_no_images_is_refused(sighted):
    class Asked:
        kind = "vllm"

    with pytest.raises(ValueError, match="gives a model no images"):
        policy_over(sighted[0], Asked())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("cluster.workers=2", "this model sees, and cluster.workers is 2: workers of a cluster make"),
        ("sampler.kind=vllm", "this model sees, and sampler.kind is 'vllm', which gives it no images"),
        ("reinforce.critic.kind=turn", "this model sees, and reinforce.critic.kind is 'turn': critics read text"),
    ],
)
def test_what_gives_a_model_no_images_is_refused_before_anything_is_written(wrong, said, tmp_path):
    save_model(tmp_path / "sees", *llava())
    config = load(overrides=[wrong], base={"env": "guess", "model": {"path": str(tmp_path / "sees")}})
    with pytest.raises(ValueError, match=f"^model.path = .*sees': {said}") as error:
        train(config, tmp_path / "run")
    assert len(str(error.value).splitlines()) == 1
    if "critic" not in wrong:  # who only plays has no critic
        plain = load(overrides=[wrong], base={"env": "guess"})
        with pytest.raises(ValueError, match=f"^model = .*sees': {said}"):
            asyncio.run(evaluate_folders(plain, tmp_path / "run", models=[tmp_path / "sees"], agents=["random"]))
    assert not (tmp_path / "run").exists()
