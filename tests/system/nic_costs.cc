// The questions of nic_probe about the CPU's cost for a device: posts, doorbells and polls, one at a time and in
// chains.
#include <algorithm>
#include <cstdio>

#include "nic_probe.hpp"

namespace nic {
namespace {

constexpr int kRepetitions = 201;

double median(std::vector<double>& samples) {
    std::nth_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2), samples.end());
    return samples[samples.size() / 2];
}
double ns_since(Clock::time_point began) {
    return std::chrono::duration<double, std::nano>(Clock::now() - began).count();
}

/// Cycles of the time-stamp counter per nanosecond; 0 if there is no such counter.
double cycles_per_ns() {
#ifdef __x86_64__
    const auto began = Clock::now();
    const auto before = __builtin_ia32_rdtsc();
    while (ns_since(began) < 2e7) {
    }
    return static_cast<double>(__builtin_ia32_rdtsc() - before) / ns_since(began);
#else
    return 0;
#endif
}
std::string shown(double ns) {
    static const double rate = cycles_per_ns();
    char text[64];
    std::snprintf(text, sizeof text, rate > 0 ? "%.1f ns (%.0f cycles)" : "%.1f ns", ns, ns * rate);
    return text;
}

/// Cost in ns per write, for 64 writes of 8 bytes that are posted in chains, and polled with 32 entries per call.
struct Cost {
    double post;
    double poll;
};
struct Load {
    Load(const Device& device, bool with_inline)
        : cq(device.cq(256)),
          memory(device, 4096),
          pair(device, {.send_cq = cq.get(), .recv_cq = cq.get(), .inline_size = with_inline ? 8u : 0u}),
          flags(IBV_SEND_SIGNALED | (with_inline ? IBV_SEND_INLINE : 0)),
          sge(memory.sge(0, 8)) {}

    Cost run(std::size_t chain) {
        std::array<ibv_send_wr, kWrites> works{};
        std::vector<double> posts;
        std::vector<double> polls;
        for (int repetition = 0; repetition < kRepetitions; ++repetition) {
            for (std::size_t i = 0; i < kWrites; ++i) {
                works[i] = QueuePair::request(IBV_WR_RDMA_WRITE, i, &sge, memory.addr(2048), memory.key(), flags);
                works[i].next = (i + 1) % chain == 0 ? nullptr : &works[i + 1];
            }
            auto began = Clock::now();
            for (std::size_t i = 0; i < kWrites; i += chain) {
                pair.a.post(works[i]);
            }
            posts.push_back(ns_since(began) / kWrites);
            // Waits long enough for all completions to be in the CQ. The poll then shows only the CPU's cost, without a
            // wait for the device.
            began = Clock::now();
            while (ns_since(began) < 200'000) {
            }
            ibv_wc some[32];
            std::size_t left = kWrites;
            double in_polls = 0;
            while (left > 0) {
                began = Clock::now();
                const int got = ibv_poll_cq(cq.get(), 32, some);
                in_polls += got > 0 ? ns_since(began) : 0;
                require(got >= 0 && (got == 0 || some[0].status == IBV_WC_SUCCESS), "a write failed");
                left -= static_cast<std::size_t>(got);
            }
            polls.push_back(in_polls / kWrites);
        }
        return {median(posts), median(polls)};
    }

    static constexpr std::size_t kWrites = 64;
    Owned<ibv_cq> cq;
    Memory memory;
    Pair pair;
    unsigned flags;
    ibv_sge sge;
};

Answer doorbell_of(const Device& device, bool with_inline) {
    Load load(device, with_inline);
    Answer answer{Outcome::found, "", {}};
    // A chain of n requests costs n * request + doorbell. Fits a line through all points by least squares, with equal
    // weights.
    double x = 0, y = 0, xx = 0, xy = 0, points = 0;
    for (const std::size_t chain : {1u, 2u, 4u, 8u, 16u, 32u}) {
        const double each = load.run(chain).post;
        const auto n = static_cast<double>(chain);
        answer.figures.emplace_back("post of each, chains of " + std::to_string(chain) + ", ns", each);
        x += n, y += each * n, xx += n * n, xy += n * each * n, ++points;
    }
    const double request = (points * xy - x * y) / (points * xx - x * x);
    const double doorbell = (y - request * x) / points;
    answer.figures.emplace_back("a request more, ns", request);
    answer.figures.emplace_back("the doorbell, ns", doorbell);
    answer.text = "a post is " + shown(doorbell) + " for the doorbell and " + shown(request) + " for each request";
    return answer;
}
Answer doorbell(const Device& device) {
    return doorbell_of(device, false);
}
Answer doorbell_inline(const Device& device) {
    return doorbell_of(device, true);
}

Answer poll(const Device& device) {
    Load load(device, false);
    const double polled = load.run(32).poll;
    std::vector<double> empty;
    for (int repetition = 0; repetition < kRepetitions; ++repetition) {
        const auto began = Clock::now();
        ibv_wc wc;
        for (int i = 0; i < 64; ++i) {
            (void)ibv_poll_cq(load.cq.get(), 1, &wc);
        }
        empty.push_back(ns_since(began) / 64);
    }
    const double nothing = median(empty);
    return {Outcome::found,
            "a completion is " + shown(polled) + " in polls of 32, an empty look " + shown(nothing),
            {{"a completion, ns", polled}, {"an empty look, ns", nothing}}};
}

Answer extended_poll(const Device& device) {
    ibv_cq_init_attr_ex attr{};
    attr.cqe = 256;
    attr.wc_flags = IBV_WC_EX_WITH_BYTE_LEN;
    attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
    attr.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
    ibv_cq_ex* cq = ibv_create_cq_ex(device.context, &attr);
    if (cq == nullptr) {
        attr.comp_mask = attr.flags = 0;
        cq = ibv_create_cq_ex(device.context, &attr);
    }
    if (cq == nullptr) {
        throw NotOffered("no extended CQ");
    }
    if (device.attr.orig_attr.vendor_id == 0xffffff) {
        ibv_destroy_cq(ibv_cq_ex_to_cq(cq));
        throw NotOffered("Soft-RoCE's ibv_next_poll corrupts its CQ");
    }
    const Owned<ibv_cq> owner(ibv_cq_ex_to_cq(cq));
    Memory memory(device, 4096);
    Pair pair(device, {.send_cq = owner.get(), .recv_cq = owner.get()});
    std::vector<double> samples;
    std::uint64_t sum = 0;
    for (int repetition = 0; repetition < kRepetitions; ++repetition) {
        for (std::uint64_t i = 0; i < 32; ++i) {
            pair.a.post(IBV_WR_RDMA_WRITE, i, memory.sge(0, 8), memory.addr(2048), memory.key());
        }
        auto began = Clock::now();
        while (ns_since(began) < 200'000) {
        }
        int left = 32;
        double in_polls = 0;
        while (left > 0) {
            began = Clock::now();
            ibv_poll_cq_attr poll{};
            if (ibv_start_poll(cq, &poll) != 0) {
                continue;
            }
            int more = 0;
            do {
                sum += cq->wr_id + static_cast<std::uint64_t>(cq->status) + ibv_wc_read_opcode(cq);
                --left;
                more = left > 0 ? ibv_next_poll(cq) : ENOENT;
            } while (more == 0);
            ibv_end_poll(cq);
            in_polls += ns_since(began);
        }
        samples.push_back(in_polls / 32);
    }
    asm volatile("" : : "r"(sum));
    const double each = median(samples);
    return {Outcome::found,
            "a completion is " + shown(each) + " by ibv_start_poll and ibv_next_poll, of one thread's CQ",
            {{"a completion, ns", each}}};
}

Answer queue_pairs(const Device& device) {
    Answer answer{Outcome::found, "a post to another queue pair each time, singly", {}};
    const auto cq = device.cq(4096);
    Memory memory(device, 4096);
    std::vector<std::unique_ptr<Pair>> pairs;
    for (const std::size_t count : {1u, 16u, 256u, 1024u}) {
        while (pairs.size() < count) {
            pairs.push_back(
                std::make_unique<Pair>(device, Shape{.send_cq = cq.get(), .recv_cq = cq.get(), .depth = 32}));
        }
        std::vector<double> samples;
        std::uint32_t random = 1;
        for (int repetition = 0; repetition < kRepetitions; ++repetition) {
            const auto began = Clock::now();
            for (int i = 0; i < 16; ++i) {
                random = random * 1664525 + 1013904223;
                pairs[(random >> 8) % count]->a.post(IBV_WR_RDMA_WRITE, 1, memory.sge(0, 8), memory.addr(2048),
                                                     memory.key());
            }
            samples.push_back(ns_since(began) / 16);
            require(take(cq.get(), 16).size() == 16, "completions are missing");
        }
        answer.figures.emplace_back("post, " + std::to_string(count) + " queue pairs, ns", median(samples));
    }
    return answer;
}

Answer cqs(const Device& device) {
    Answer answer{Outcome::found, "a write and its completion on each of many CQs, by turns", {}};
    Memory memory(device, 4096);
    for (const std::size_t count : {1u, 16u, 256u}) {
        std::vector<Owned<ibv_cq>> all;
        std::vector<std::unique_ptr<Pair>> pairs;
        for (std::size_t i = 0; i < count; ++i) {
            all.push_back(device.cq(32));
            pairs.push_back(
                std::make_unique<Pair>(device, Shape{.send_cq = all[i].get(), .recv_cq = all[i].get(), .depth = 8}));
        }
        // With few CQs, runs several rounds between two readings of the clock.
        const std::size_t rounds = count < 8 ? 8 : 1;
        const auto polled = static_cast<double>(rounds * count);
        std::vector<double> looks;
        std::vector<double> polls;
        for (int repetition = 0; repetition < kRepetitions; ++repetition) {
            ibv_wc wc;
            auto began = Clock::now();
            for (std::size_t i = 0; i < rounds * count; ++i) {
                (void)ibv_poll_cq(all[i % count].get(), 1, &wc);
            }
            looks.push_back(ns_since(began) / polled);
            for (std::size_t i = 0; i < rounds * count; ++i) {
                pairs[i % count]->a.post(IBV_WR_RDMA_WRITE, 1, memory.sge(0, 8), memory.addr(2048), memory.key());
            }
            began = Clock::now();
            while (ns_since(began) < 200'000) {
            }
            began = Clock::now();
            for (std::size_t i = 0; i < rounds * count; ++i) {
                int got = 0;
                while (got == 0) {
                    got = ibv_poll_cq(all[i % count].get(), 1, &wc);
                }
                require(got == 1 && wc.status == IBV_WC_SUCCESS, "a write failed");
            }
            polls.push_back(ns_since(began) / polled);
        }
        answer.figures.emplace_back("an empty look, " + std::to_string(count) + " CQs, ns", median(looks));
        answer.figures.emplace_back("a completion, " + std::to_string(count) + " CQs, ns", median(polls));
    }
    return answer;
}

}  // namespace

std::vector<Question> costs() {
    return {
        {"doorbell", "What a doorbell costs beside the requests before it", doorbell, true},
        {"doorbell-inline", "What a doorbell costs where the payload travels in the request", doorbell_inline, true},
        {"poll", "What ibv_poll_cq costs, with completions and without", poll, true},
        {"extended-poll", "What ibv_start_poll and its kin cost", extended_poll, true},
        {"post-many-qps", "What a post costs by the number of queue pairs", queue_pairs, true},
        {"poll-many-cqs", "What a poll costs by the number of CQs", cqs, true},
    };
}

}  // namespace nic
