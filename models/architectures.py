"""What the llama.cpp of llama-cpp-python 0.3.36 can load, by the names that GGUF files use.

Source: LLM_ARCH_NAMES and llama_model_mapping in llama-arch.cpp and llama-model.cpp, and the pre-tokenizers
in llama-vocab.cpp. `tests/models/test_architectures.py` compares with the gguf package.
"""

# fmt: off
ARCHITECTURES = frozenset({
    "afmoe", "apertus", "arcee", "arctic", "arwkv7", "baichuan", "bailingmoe", "bailingmoe2",
    "bailingmoe3", "bert", "bitnet", "bloom", "chameleon", "chatglm", "clip", "codeshell", "cogvlm",
    "cohere2", "cohere2moe", "command-r", "dbrx", "deci", "deepseek", "deepseek2", "deepseek2-ocr",
    "deepseek32", "deepseek4", "dflash", "dots1", "dots3note", "dream", "eagle3", "ernie4_5",
    "ernie4_5-moe", "eurobert", "exaone", "exaone-moe", "exaone4", "falcon", "falcon-h1", "gemma",
    "gemma-embedding", "gemma2", "gemma3", "gemma3n", "gemma4", "gemma4-assistant", "glm-dsa", "glm4",
    "glm4moe", "glm5-next", "gpt-oss", "gpt2", "gptneox", "granite", "granite_swa", "granitehybrid",
    "granitemoe", "graniteswitch", "grok", "grovemoe", "hrm_text", "hunyuan-dense", "hunyuan-moe",
    "hunyuan_vl", "hy_v3", "hy_v4", "internlm2", "jais", "jais2", "jamba", "jina-bert-v2", "jina-bert-v3",
    "kimi-k3", "kimi-linear", "laguna", "lfm2", "lfm2moe", "llada", "llada-moe", "llama", "llama-embed",
    "llama4", "maincoder", "mamba", "mamba2", "maple", "mellum", "mimo2", "minicpm", "minicpm3",
    "minimax-01", "minimax-m2", "minimax-m3", "mistral3", "mistral4", "modern-bert", "mpt",
    "muse-glimmer", "nanbeige", "nemotron", "nemotron_h", "nemotron_h_moe", "neo-bert", "nomic-bert",
    "nomic-bert-moe", "olmo", "olmo2", "olmoe", "openelm", "orion", "paddleocr", "pangu-embedded", "phi2",
    "phi3", "phimoe", "plamo", "plamo2", "plamo3", "plm", "pockettts", "qwen", "qwen2", "qwen2moe",
    "qwen2vl", "qwen3", "qwen35", "qwen35moe", "qwen3moe", "qwen3next", "qwen3tts", "qwen3vl",
    "qwen3vlmoe", "qwen4exp", "refact", "rnd1", "rwkv6", "rwkv6qwen2", "rwkv7", "seed_oss",
    "smallthinker", "smollm3", "spark2_5", "stablelm", "starcoder", "starcoder2", "step35", "t5",
    "t5encoder", "talkie", "wavtokenizer-dec", "xverse",
})

PRE_TOKENIZERS = frozenset({
    "a.x-4.0", "afmoe", "bailingmoe", "bailingmoe2", "bloom", "chameleon", "chatglm-bpe", "codeshell",
    "cohere2moe", "command-r", "dbrx", "deepseek-coder", "deepseek-llm", "deepseek-r1-qwen",
    "deepseek-v3", "default", "exaone", "exaone-moe", "exaone4", "f2llmv2", "falcon", "falcon-h1",
    "falcon3", "gemma4", "gigachat", "glm4", "glm5", "gpt-2", "gpt-4o", "gpt3-finnish", "granite-docling",
    "granite-embed-multi-311m", "granite-embed-multi-97m", "grok-2", "hunyuan", "hunyuan-dense", "hy_v4",
    "jais", "jais-2", "jina-de", "jina-es", "jina-v1-en", "jina-v2-code", "jina-v2-de", "jina-v2-es",
    "jina-v5-nano", "joyai-llm", "kanana2", "kimi-k2", "kormo", "laguna", "lfm2", "llada-moe",
    "llama-bpe", "llama-v3", "llama3", "llama4", "megrez", "mellum", "mellum2", "midm-2.0", "minerva-7b",
    "minicpm5", "minimax-m2", "modern-bert", "mpt", "olmo", "phi-2", "pixtral", "poro-chat", "qwen2",
    "qwen35", "refact", "roberta-bpe", "sarvam-moe", "seed-coder", "smaug-bpe", "smollm", "solar-open",
    "spark2_5", "stablelm2", "starcoder", "superbpe", "talkie", "tekken", "tiny_aya", "trillion",
    "ufakzeka", "viking", "whitespace", "youtu",
})

# The graph builders assert that a head's keys and values are equally wide, but for these.
KEYS_AND_VALUES_MAY_DIFFER = frozenset({
    "arwkv7", "bailingmoe", "bailingmoe3", "clip", "deepseek2", "deepseek2-ocr", "deepseek32",
    "deepseek4", "dots3note", "falcon-h1", "gemma", "gemma-embedding", "gemma2", "gemma3", "gemma3n",
    "gemma4", "gemma4-assistant", "glm-dsa", "glm5-next", "gpt-oss", "hrm_text", "hy_v4", "jamba",
    "kimi-k3", "kimi-linear", "lfm2", "lfm2moe", "mamba", "mamba2", "mimo2", "minicpm3", "mistral4",
    "plamo2", "plamo3", "plm", "rwkv6", "rwkv6qwen2", "rwkv7", "step35", "wavtokenizer-dec",
})

# The graph builders of these assert that a head is rotated as a whole.
ROTATE_ALL = frozenset({
    "apertus", "arcee", "arctic", "baichuan", "chameleon", "codeshell", "cogvlm", "cohere2moe", "dbrx",
    "deci", "deepseek", "dots1", "dream", "ernie4_5", "ernie4_5-moe", "exaone", "exaone-moe", "exaone4",
    "falcon", "granite", "granite_swa", "granitemoe", "graniteswitch", "grok", "grovemoe",
    "hunyuan-dense", "hunyuan-moe", "hunyuan_vl", "hy_v3", "internlm2", "jais2", "llada", "llada-moe",
    "llama", "llama-embed", "llama4", "maincoder", "mellum", "minicpm", "mistral3", "olmo", "olmo2",
    "olmoe", "orion", "paddleocr", "pangu-embedded", "plamo", "pockettts", "qwen2", "qwen2moe", "qwen2vl",
    "qwen3", "qwen3moe", "qwen3tts", "qwen3vl", "qwen3vlmoe", "rnd1", "seed_oss", "smallthinker",
    "smollm3", "starcoder2", "talkie", "xverse",
})
# fmt: on

TOKENIZERS = frozenset({"llama", "bert", "gpt2", "hybriddna", "whitespace", "t5", "rwkv", "plamo2", "gemma4"})

# Known to llama.cpp, but not models that one can talk to.
NOT_LANGUAGE_MODELS = {
    "clip": "an image encoder that belongs to another model",
    "dflash": "a draft head that belongs to another model",
    "eagle3": "a draft head that belongs to another model",
    "gemma4-assistant": "a draft head that belongs to another model",
    "pockettts": "a model of speech",
    "qwen3tts": "a model of speech",
    "wavtokenizer-dec": "a model of speech",
}

# Without attention: no heads to count.
RECURRENT = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})

# Some layers have no attention, so that a layer's head counts may be 0.
SOME_LAYERS_WITHOUT_ATTENTION = frozenset(
    {
        "bailingmoe3",
        "deci",
        "deepseek4",
        "falcon-h1",
        "glm5-next",
        "granitehybrid",
        "jamba",
        "kimi-k3",
        "kimi-linear",
        "lfm2",
        "lfm2moe",
        "minimax-01",
        "nemotron_h",
        "nemotron_h_moe",
        "plamo2",
        "qwen35",
        "qwen35moe",
        "qwen3next",
        "qwen4exp",
    }
)

# Each token of some layers sees only a window: a window of 0 would let it see nothing. (Elsewhere, as in
# phi3, 0 stands for "no window".)
SLIDING_WINDOW = frozenset(
    {
        "cohere2",
        "gemma-embedding",
        "gemma2",
        "gemma3",
        "gemma3n",
        "gemma4",
        "gpt-oss",
    }
)

# All layers are built alike, so that a tensor that one layer has and another lacks is missing.
UNIFORM_LAYERS = frozenset(
    {
        "gemma",
        "gemma2",
        "gemma3",
        "granite",
        "internlm2",
        "llama",
        "mistral3",
        "olmo2",
        "phi2",
        "phi3",
        "qwen2",
        "qwen2moe",
        "qwen3",
        "qwen3moe",
        "smollm3",
        "stablelm",
        "starcoder2",
    }
)
