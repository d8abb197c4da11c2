// A random program of verbs, run at the same time by two ways (verbs_ways.hpp): each call is made by both, and the
// results are compared. After each call that posts, the program waits until nothing moves any more, so the results do
// not depend on when a worker works.
//
// Compared are: what calls return, and which request of a chain they name; the states and attributes of objects; the
// completions of each queue of each queue pair, in order; asynchronous events; and all memory.
//
// By design, the two differ as follows. The program leaves these cases out, or allows for them.
//  - Rounding: the library gives more than it was asked for, as providers do. The device is asked for as much.
//  - Not served: SQD, alternate paths and sizes of queue pairs (EOPNOTSUPP; the device says EINVAL).
//  - Workers know one state for all errors. In SQE receives are flushed, too, and the way back to RTS is not served. In
//    ERR nothing but a move is accepted.
//  - A request whose mistake can be seen is refused when it is posted, as for an attached program: an atomic that is
//    not of one aligned word. The device completes it in error.
//  - A worker posts later, so what only the device can see becomes a completion with IBV_WC_LOC_QP_OP_ERR: an address
//    handle of another protection domain. The device returns EINVAL.
//  - A receive can serve a message only when the worker has posted it, which may be after ibv_post_recv() has returned.
//    So the program lets the worker work before it sends.
//  - A slot of a send queue becomes free earlier: when an unsignaled request has ended, not when a completion behind it
//    was polled.
//  - All receives of a shared receive queue complete in one completion queue. After its end they have none.
//  - A worker flushes by itself, without the device's vendor_err.
//  - A queue pair without room for receives refuses them in RESET for that reason, not for its state.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "verbs_ways.hpp"

namespace pollcore::test {

/// The two ways have different results.
class Difference : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

class RandomProgram {
public:
    static constexpr int kWays = 2;

    RandomProgram(DirectWay& direct, ServedWay& served, std::uint64_t seed);
    ~RandomProgram();

    /// Makes that many calls, and then destroys all objects in a random order. Throws Difference.
    void run(int calls);

    /// What was done so far, a line for each call.
    [[nodiscard]] const std::vector<std::string>& calls() const { return calls_; }
    [[nodiscard]] std::uint64_t completions() const { return completions_; }
    [[nodiscard]] std::uint64_t failed_completions() const { return failed_completions_; }
    [[nodiscard]] std::uint64_t refused_calls() const { return refused_calls_; }

private:
    template <class T>
    struct Both {
        int id = 0;
        std::array<T*, kWays> at{};
    };
    struct Pd : Both<ibv_pd> {};
    struct Cq : Both<ibv_cq> {
        bool is_extended = false;
    };
    struct Range {
        std::size_t begin = 0;  ///< in the memory of each way
        std::size_t end = 0;
    };
    struct Mr : Both<ibv_mr> {
        Pd* pd = nullptr;
        Range range;
    };
    struct Ah : Both<ibv_ah> {
        Pd* pd = nullptr;
    };
    /// A posted request, and the memory that it may use until it has ended.
    struct Posted {
        std::uint64_t wr_id = 0;
        std::vector<Range> uses;
        std::vector<Range> sges;
    };
    struct Srq : Both<ibv_srq> {
        Pd* pd = nullptr;
        Cq* recv_cq = nullptr;  ///< of its queue pairs
        bool has_ended_cq = false;
        ibv_srq_attr attr{};
        std::deque<Posted> posted;
        int users = 0;
    };
    struct Qp : Both<ibv_qp> {
        Pd* pd = nullptr;
        Cq* send_cq = nullptr;
        Cq* recv_cq = nullptr;
        Srq* srq = nullptr;
        ibv_qp_type type = IBV_QPT_RC;
        ibv_qp_cap cap{};
        bool signal_all = false;
        std::uint32_t psn = 0;  ///< of its next connection
        bool builds = false;    ///< ServedWay's requests are built by ibv_wr_start() and its companions
        std::deque<Posted> sends;
        std::deque<Posted> recvs;
    };
    /// A request, as it is for both ways.
    struct Sge {
        Range range;
        Mr* mr = nullptr;
        std::uint32_t spoilt_key = 0;  ///< added to the key
    };
    struct SendPlan {
        std::uint64_t wr_id = 0;
        std::vector<Sge> sges;
        ibv_wr_opcode opcode = IBV_WR_SEND;
        unsigned flags = 0;
        std::uint32_t imm = 0;
        std::optional<Sge> remote;
        std::uint64_t compare_add = 0;
        std::uint64_t swap = 0;
        Ah* ah = nullptr;
        Qp* to = nullptr;  ///< null: a number that no queue pair has
        std::uint32_t qkey = 0;
        int num_sge_given = 0;  ///< differs from sges.size() only if it is wrong
    };

    // ---- the calls ----
    void make_call();
    void make_pd();
    void end_pd(Pd& pd, bool the_last_too = false);
    void make_cq();
    void end_cq(Cq& cq, bool the_last_too = false);
    void make_srq();
    void limit_srq();
    void end_srq(Srq& srq);
    void make_mr();
    void end_mr(Mr& mr);
    void make_ah();
    void end_ah(Ah& ah);
    void make_qp();
    void end_qp(Qp& qp);
    void modify(Qp& qp);
    void connect();
    void bring_up(Qp& qp, Qp& peer);
    void renew_psn(Qp& qp);
    int move_to(Qp& qp, ibv_qp_state state, Qp* peer, bool with_mistakes);
    int move(Qp& qp, ibv_qp_attr attr, int mask, const Qp* peer);
    void query(Qp& qp);
    void post_sends(Qp& qp);
    void fill_send_queue(Qp& qp);
    void post_recvs(Qp& qp);
    void post_srq_recvs(Srq& srq);
    void end_all();

    // ---- their parts ----
    [[nodiscard]] SendPlan plan_send(Qp& qp, bool is_last);
    int submit(Qp& qp, std::vector<SendPlan>& plans, bool may_build = true);
    int build(Qp& qp, const std::vector<SendPlan>& plans);
    template <class Target, class Post>
    void post_receives(Target& to, std::deque<Posted>& posted, const char* what, Pd* pd, std::uint32_t sges_max,
                       std::uint32_t depth, const Post& post);
    [[nodiscard]] std::vector<Sge> plan_sges(Pd* pd, std::size_t count, std::size_t least, std::size_t most,
                                             std::size_t align);
    [[nodiscard]] std::optional<Range> free_range(const Mr& mr, std::size_t bytes, std::size_t align);
    [[nodiscard]] ibv_sge sge_of(int way, const Sge& sge) const;
    [[nodiscard]] char* memory(int way) const { return memory_[static_cast<std::size_t>(way)]; }
    [[nodiscard]] ibv_qp_state state_of(Qp& qp);

    /// Waits until nothing moves any more, and compares what has happened.
    void settle();
    void settle_once();
    std::vector<ibv_wc> poll(int way, const Cq& cq);
    void compare_completions(Cq& cq, const std::vector<ibv_wc>& direct, const std::vector<ibv_wc>& served);
    void compare_one(const ibv_wc& direct, const ibv_wc& served);
    void took(const ibv_wc& direct);
    void compare_events();
    void compare_memory() const;
    void drop_grh(const Posted& receive, bool whole);

    // ---- chance ----
    [[nodiscard]] std::size_t pick(std::size_t count) { return random_() % count; }
    [[nodiscard]] bool chance(unsigned percent) { return random_() % 100 < percent; }
    [[nodiscard]] bool mistake(unsigned percent) { return clumsy_ && chance(percent); }
    template <class T>
    [[nodiscard]] T* any(std::vector<std::unique_ptr<T>>& all) {
        return all.empty() ? nullptr : all[pick(all.size())].get();
    }

    // ---- comparing ----
    void say(std::string text) { calls_.push_back(std::move(text)); }
    [[noreturn]] void differ(const std::string& what) const;
    /// Both must return the same errno value, which is returned.
    int same(const std::string& what, int direct, int served);
    template <class T>
    bool made(const std::string& what, Both<T>& object, const std::array<int, kWays>& errors);
    template <class T>
    bool ended(const std::string& what, std::vector<std::unique_ptr<T>>& all, T& object,
               const std::array<int, kWays>& errors);
    [[nodiscard]] int index_of(int way, std::uint32_t qp_num) const;

    std::array<Way*, kWays> ways_;
    std::mt19937_64 random_;
    bool clumsy_;  ///< makes many mistakes
    ibv_mtu mtu_;
    std::array<char*, kWays> memory_{};
    std::vector<std::string> calls_;
    std::vector<std::unique_ptr<Pd>> pds_;
    std::vector<std::unique_ptr<Cq>> cqs_;
    std::vector<std::unique_ptr<Srq>> srqs_;
    std::vector<std::unique_ptr<Mr>> mrs_;
    std::vector<std::unique_ptr<Ah>> ahs_;
    std::vector<std::unique_ptr<Qp>> qps_;
    std::vector<Range> in_burst_;  ///< memory of the requests that are being planned
    std::array<std::map<std::string, int>, kWays> events_;
    bool moving_ = false;           ///< a call was made that may have effects later
    bool receives_moving_ = false;  ///< receives were posted that the worker may not have taken
    int next_id_ = 0;
    std::uint32_t next_psn_ = 0;
    std::uint64_t next_wr_id_ = 1;
    std::uint64_t completions_ = 0;
    std::uint64_t failed_completions_ = 0;
    std::uint64_t refused_calls_ = 0;
};

}  // namespace pollcore::test
