// The NIC's part of a queue pair: its state and attributes, the sends that it carries out, and the requests that it
// answers.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include <infiniband/verbs.h>
#include <rdma/ib_user_verbs.h>

#include "completion_queue.hpp"
#include "hca_send_queue.hpp"
#include "receive_queue.hpp"

namespace mlx5_model {

class Hca;
class UverbsFile;

/// The bits of a packet sequence number (InfiniBand Architecture Specification 9.2).
inline constexpr std::uint32_t kSequenceMask = 0xffffff;

/// The pieces of memory that make up one message.
class Pieces {
public:
    struct Piece {
        std::uint8_t* at = nullptr;
        std::uint32_t length = 0;
    };
    void add(void* at, std::uint32_t length) {
        pieces_[count_++] = {static_cast<std::uint8_t*>(at), length};
        total_ += length;
    }
    [[nodiscard]] std::uint64_t total() const noexcept { return total_; }
    [[nodiscard]] std::span<const Piece> all() const noexcept { return {pieces_, static_cast<std::size_t>(count_)}; }

private:
    Piece pieces_[SendWqe::kSegmentsMax + 2];
    int count_ = 0;
    std::uint64_t total_ = 0;
};
/// Copies bytes from `from` to `to`, up to the length of the shorter one.
void copy(const Pieces& to, const Pieces& from);

/// A message on the wire.
struct Request {
    const SendWqe& wqe;
    const Pieces& payload;  ///< the message's data; for reads and atomics: the memory that takes the answer
    const ibv_gid& source_gid;
    std::uint32_t source_qpn = 0;
    std::uint32_t sequence = 0;  ///< PSN of the message; each message takes one PSN
};

struct Answer {
    enum class Kind : std::uint8_t {
        acknowledged,
        silent,
        not_ready,
        invalid_request,
        access_error,
        operational_error
    };
    Kind kind = Kind::silent;
    std::uint64_t found = 0;  ///< the value before an atomic operation
    std::uint8_t rnr_timer = 0;
};

/// The attributes that MODIFY_QP has set.
struct QpAttributes {
    ib_uverbs_qp_dest dest{};
    std::uint32_t qkey = 0;
    std::uint32_t rq_psn = 0;
    std::uint32_t sq_psn = 0;
    std::uint32_t dest_qp_num = 0;
    std::uint32_t qp_access_flags = 0;
    std::uint16_t pkey_index = 0;
    std::uint8_t path_mtu = 0;
    std::uint8_t max_rd_atomic = 0;
    std::uint8_t max_dest_rd_atomic = 0;
    std::uint8_t min_rnr_timer = 0;
    std::uint8_t port_num = 0;
    std::uint8_t timeout = 0;
    std::uint8_t retry_cnt = 0;
    std::uint8_t rnr_retry = 0;
};

/// Not thread-safe: callers hold the fabric's lock.
class QueuePair {
public:
    struct Facts {
        UverbsFile* file = nullptr;
        Hca* hca = nullptr;
        std::uint32_t number = 0;
        std::uint32_t user_index = 0;
        std::uint32_t pd = 0;
        ibv_qp_type type = IBV_QPT_RC;
        std::uint64_t user_handle = 0;
        bool payload_in_sender_cqe = false;
        bool payload_in_receiver_cqe = false;
        ibv_qp_cap cap{};
        bool signal_all = false;
    };
    QueuePair(const Facts& facts, const SendQueueMemory& sends, RingReceiveQueue receives,
              std::shared_ptr<CompletionQueue> send_cq, std::shared_ptr<CompletionQueue> recv_cq,
              std::shared_ptr<SharedReceiveQueue> srq);

    [[nodiscard]] const Facts& facts() const noexcept { return facts_; }
    [[nodiscard]] ibv_qp_state state() const noexcept { return state_; }
    [[nodiscard]] const CompletionQueue& send_cq() const noexcept { return *send_cq_; }
    [[nodiscard]] const CompletionQueue& recv_cq() const noexcept { return *recv_cq_; }
    [[nodiscard]] bool uses(const CompletionQueue& cq) const noexcept {
        return send_cq_.get() == &cq || recv_cq_.get() == &cq;
    }
    [[nodiscard]] bool uses(const SharedReceiveQueue& srq) const noexcept { return srq_.get() == &srq; }
    [[nodiscard]] const DoorbellCounts& doorbells() const noexcept { return sends_.doorbells(); }

    /// Carries out MODIFY_QP. Returns 0 or the error with which the kernel would refuse it.
    int modify(const ib_uverbs_modify_qp& request);
    void query(ib_uverbs_query_qp_resp& response) const;
    /// Drops the unread asynchronous events of the queue pair. Returns the number of events that were read.
    std::uint32_t forget_events();

    /// Carries out at most `most` send WQEs. Returns the number of WQEs that ended.
    int serve(int most, std::uint64_t now_ns);
    Answer answer(const Request& request, std::uint64_t now_ns);
    void raise(ibv_event_type type);

private:
    // State: hca_queue_pair.cc
    [[nodiscard]] int check(const ib_uverbs_modify_qp& request, ibv_qp_state to) const;
    void store(const ib_uverbs_modify_qp& request);
    void enter_error(std::uint64_t now_ns);
    void flush_receives(std::uint64_t now_ns);
    void error_cqe(CompletionQueue& cq, bool of_send, std::uint8_t syndrome, std::uint8_t vendor_syndrome,
                   std::uint16_t counter, std::uint8_t opcode, std::uint64_t now_ns);

    // Sends: hca_requester.cc
    enum class Outcome : std::uint8_t { done, waits };
    [[nodiscard]] QueuePair* peer(const SendWqe& wqe) const;
    Outcome carry_out(const SendWqe& wqe, std::uint64_t now_ns);
    Outcome ask(const SendWqe& wqe, const Pieces& local, std::uint64_t now_ns);
    Outcome wait_for_answer(const SendWqe& wqe, std::uint64_t now_ns);
    Outcome wait_for_receiver(const SendWqe& wqe, std::uint8_t rnr_timer, std::uint64_t now_ns);
    Outcome succeed(const SendWqe& wqe, std::uint64_t now_ns);
    Outcome fail(const SendWqe& wqe, std::uint8_t syndrome, std::uint64_t now_ns, std::uint8_t vendor_syndrome = 0);
    void flush_sends(int most, int& ended, std::uint64_t now_ns);

    // Requests: hca_responder.cc
    enum class Receipt : std::uint8_t { delivered, none, too_short, forbidden, failed };
    [[nodiscard]] bool hears() const noexcept;
    Answer answer_first(const Request& request, std::uint64_t now_ns);
    Answer answer_again(const Request& request);
    Answer answer_send(const Request& request, std::uint64_t now_ns);
    Answer answer_write(const Request& request, std::uint64_t now_ns);
    Answer answer_read(const Request& request, std::uint64_t now_ns, bool again);
    Answer answer_atomic(const Request& request, std::uint64_t now_ns);
    Answer refuse_request(Answer::Kind kind, bool event, std::uint64_t now_ns);
    std::optional<Receive> take_receive();
    void fail_receive(const Receive& receive, std::uint8_t syndrome, std::uint64_t now_ns,
                      std::uint8_t vendor_syndrome = 0);
    Receipt receive(const Request& request, std::uint8_t cqe_opcode, std::uint64_t now_ns);
    void receive_cqe(const Request& request, const Receive& receive, std::uint8_t cqe_opcode, std::uint32_t bytes,
                     const void* payload, std::uint64_t now_ns);
    [[nodiscard]] void* reach(const Request& request, std::uint64_t length, int access) const;

    Facts facts_;
    SendQueue sends_;
    RingReceiveQueue receives_;
    std::shared_ptr<CompletionQueue> send_cq_;
    std::shared_ptr<CompletionQueue> recv_cq_;
    std::shared_ptr<SharedReceiveQueue> srq_;
    ibv_qp_state state_ = IBV_QPS_RESET;
    QpAttributes attributes_;
    Reported events_ = none_reported();

    // The requester's state.
    std::uint32_t next_sequence_ = 0;
    std::uint64_t wait_until_ns_ = 0;
    std::uint32_t silences_ = 0;                 // consecutive tries without an answer
    std::uint32_t rnr_naks_ = 0;                 // consecutive RNR NAKs
    alignas(64) std::uint8_t answer_bytes_[64];  // a small answer, which is written into the CQE
    std::uint32_t answer_size_ = 0;

    // The responder's state.
    struct AnsweredAtomic {
        std::uint32_t sequence;
        std::uint64_t found;
    };
    std::uint32_t expected_sequence_ = 0;
    bool heard_ = false;
    std::deque<AnsweredAtomic> atomics_;
};

}  // namespace mlx5_model
