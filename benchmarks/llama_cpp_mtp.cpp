// llama.cpp's own decoding with a model's draft head, for benchmarks/mtp.py: its loop of examples/speculative-simple.
//
//     llama_cpp_mtp MODEL.gguf PROMPTS TOKENS LEVELS THREADS
//
// PROMPTS: a file of token ids, one prompt a line. LEVELS: drafted tokens at most; 0: plain decoding.
// A line of output for each prompt: seconds of decoding, drafted tokens, accepted ones, then the ids of the answer.

#include "common.h"
#include "log.h"
#include "llama.h"
#include "sampling.h"
#include "speculative.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

struct Answer {
    llama_tokens ids;
    int drafted = 0, accepted = 0;
    double seconds = 0;
};

static void forget(llama_context * ctx, int from) {
    if (ctx) llama_memory_seq_rm(llama_get_memory(ctx), 0, from, -1);
}

static Answer decode(common_params & params, llama_context * tgt, llama_context * dft, const llama_tokens & prompt, int count) {
    Answer out;
    const llama_model * model = llama_get_model(tgt);
    const bool restore = common_context_can_seq_rm(tgt) == COMMON_CONTEXT_SEQ_RM_TYPE_FULL;
    const bool restore_dft = dft && common_context_can_seq_rm(dft) == COMMON_CONTEXT_SEQ_RM_TYPE_FULL;
    llama_memory_clear(llama_get_memory(tgt), true);
    if (dft) llama_memory_clear(llama_get_memory(dft), true);
    common_sampler_ptr sampler(common_sampler_init(model, params.sampling));
    common_speculative * spec = dft ? common_speculative_init(params.speculative, 1) : nullptr;
    common_batch batch(tgt);
    for (size_t i = 0; i + 1 < prompt.size(); ++i) batch.add(prompt[i], i, 0, false);
    llama_process(tgt, LLAMA_PROCESS_TYPE_DECODE, batch.get());
    if (spec) common_speculative_process(spec, batch);
    llama_token last = prompt.back();
    llama_tokens before(prompt.begin(), prompt.end() - 1), draft;
    if (spec) common_speculative_begin(spec, 0, before);
    common_prompt_checkpoint ckpt;
    const int64_t began = ggml_time_us();
    while ((int) out.ids.size() < count) {
        if (spec && draft.empty()) {
            auto * memory = llama_get_memory(tgt);
            ckpt.update_pos(before.size(), llama_memory_seq_pos_min(memory, 0), llama_memory_seq_pos_max(memory, 0));
            if (restore_dft) ckpt.update_dft(dft, 0, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
            const int most = std::max(0, count - (int) out.ids.size() - 1);
            common_speculative_get_draft_params(spec, 0) = {true, most, (int) before.size(), last, &before, &draft};
            common_speculative_draft(spec);
            if (!draft.empty() && restore) ckpt.update_tgt(tgt, 0, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
            if (restore_dft) ckpt.load_dft(dft, 0, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
            forget(dft, ckpt.pos_max + 1);
        }
        batch.clear();
        batch.add(last, before.size(), 0, true);
        for (size_t i = 0; i < draft.size(); ++i) batch.add(draft[i], before.size() + 1 + i, 0, true);
        llama_process(tgt, LLAMA_PROCESS_TYPE_DECODE, batch.get());
        if (spec) common_speculative_process(spec, batch);
        common_sampler_ptr saved(restore ? common_sampler_clone(sampler.get()) : nullptr);
        auto ids = common_sampler_sample_and_accept_n(sampler.get(), tgt, draft);
        if (restore && ids.size() - 1 < draft.size()) {  // read again, with the accepted tokens as the draft
            draft = std::move(ids);
            ckpt.load_tgt(tgt, 0, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
            forget(tgt, ckpt.pos_max + 1);
            if (dft) ckpt.load_dft(dft, 0, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
            forget(dft, ckpt.pos_max + 1);
            sampler = std::move(saved);
            continue;
        }
        if (spec) common_speculative_accept(spec, 0, ids.size() - 1);
        out.drafted += draft.size();
        out.accepted += ids.size() - 1;
        for (llama_token id : ids) {
            before.push_back(last);
            out.ids.push_back(last = id);
        }
        draft.clear();
        forget(tgt, before.size());
        forget(dft, before.size());
    }
    out.seconds = (ggml_time_us() - began) / 1e6;
    if (spec) common_speculative_free(spec);
    out.ids.resize(count);
    return out;
}

int main(int argc, char ** argv) {
    if (argc != 6) return 2;
    common_params params;
    params.model.path = argv[1];
    const int count = atoi(argv[3]), levels = atoi(argv[4]);
    params.n_ctx = 2048;
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = atoi(argv[5]);
    params.speculative.draft.cpuparams = params.speculative.draft.cpuparams_batch = params.cpuparams;
    params.sampling.temp = 0;
    params.warmup = false;
    if (levels) {
        params.speculative.types = {COMMON_SPECULATIVE_TYPE_DRAFT_MTP};
        params.speculative.draft.n_max = levels;
    }
    const auto limits = common_speculative_get_output_limits(params.n_batch, 1, common_speculative_n_max(&params.speculative));
    params.n_outputs_max = limits.total;
    params.n_outputs_max_per_seq = limits.per_seq;
    common_log_set_verbosity_thold(0);
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_backend_init();
    auto loaded = common_init_from_params(params);
    llama_context * tgt = loaded->context(), * dft = nullptr;
    common_speculative_init_result_ptr init;
    if (levels) {
        common_params own = common_base_params_to_speculative(params);
        init = common_speculative_init_from_params(own, loaded->model(), tgt);
        params.speculative.draft.ctx_tgt = tgt;
        params.speculative.draft.ctx_dft = dft = init->context();
        if (!dft) return 3;
    }
    std::ifstream file(argv[2]);
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        llama_tokens prompt;
        for (llama_token id; words >> id;) prompt.push_back(id);
        const Answer answer = decode(params, tgt, dft, prompt, count);
        printf("%.6f %d %d", answer.seconds, answer.drafted, answer.accepted);
        for (llama_token id : answer.ids) printf(" %d", id);
        printf("\n");
        fflush(stdout);
    }
    return 0;
}
