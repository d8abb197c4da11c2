// What the attacks of hostile-verbs make and use, and when they end.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>

#include <infiniband/verbs.h>

namespace pollcore::test::hostile {

using Clock = std::chrono::steady_clock;

constexpr int kFailed = 3;  // an exit code that the sanitizers do not use

/// When the rounds end.
inline Clock::time_point g_end;
inline bool over() {
    return Clock::now() >= g_end;
}
inline thread_local std::mt19937_64 g_random;
inline std::uint64_t pick(std::uint64_t count) {
    return g_random() % count;
}
/// What must work did not.
[[noreturn]] void fail(const char* what);

// ---- the objects of a round ----

constexpr std::size_t kBytes = 64 * 1024;
constexpr std::uint32_t kDepth = 64;

struct Objects {
    ibv_context* context = nullptr;
    ibv_pd* pd = nullptr;
    ibv_cq* cq = nullptr;
    ibv_srq* srq = nullptr;
    ibv_mr* mr = nullptr;
    ibv_ah* ah = nullptr;
    ibv_qp* a = nullptr;  // a and b are connected
    ibv_qp* b = nullptr;
    ibv_qp* datagrams = nullptr;
    char* memory = nullptr;
    ibv_gid gid{};
};

Objects make();
/// Ends all of them but the context and the memory.
void end(Objects& all);

ibv_context* open_device();
ibv_qp* make_qp(const Objects& all, ibv_qp_type type, ibv_srq* srq = nullptr);
/// To RTS. A peer is the number of a queue pair.
int advance(const Objects& all, ibv_qp* qp, std::uint32_t peer);
ibv_mr* register_all(const Objects& all);
/// Whole pages of its own, because registered pages move on a software device.
char* pages(std::size_t bytes);

// ---- calls ----

int send(const Objects& all, ibv_qp* qp, std::size_t offset, std::uint32_t bytes, ibv_wr_opcode opcode = IBV_WR_SEND);
int receive(const Objects& all, ibv_qp* qp, std::size_t offset, std::uint32_t bytes);
int receive_shared(const Objects& all);
int poll(ibv_cq* cq);
/// Posts and polls on all queues, and looks at no result.
void traffic(const Objects& all, int turns);

}  // namespace pollcore::test::hostile
