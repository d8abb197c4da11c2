// Messages by rendezvous: the sender announces a message, and the receiver reads it from the sender's memory. In each
// direction only one message at a time is announced.
//
// The announcement takes the message's place in the send queue. So when the announcement has completed, all requests
// that were posted before it have ended. The message's own request ends later: when the peer's count of messages that
// it has read includes this message.
//
// Thread safety: like Flow.
#pragma once

#include <cstdint>

#include "peer/announcement.hpp"
#include "peer/control_block.hpp"
#include "worker/flow.hpp"
#include "worker/worker_pool.hpp"
#include "worker/worker_qp.hpp"

namespace pollcore {

class Rendezvous final : public PoolTaker::User {
public:
    /// Send-queue slots and CQEs for reading announced messages.
    static constexpr std::uint32_t kReadsMax = 1;

    /// `flow` owns this object. `block` is the queue pair's control block.
    Rendezvous(WorkerQp& qp, Flow& flow, ControlBlock& block) : qp_(qp), flow_(flow), block_(block) {}

    /// Announced messages are read into buffers of `pool`. This queue pair may occupy `buffers` of them at a time.
    /// Called before the worker gets the queue pair.
    void read_into(BufferPool& pool, std::uint32_t buffers) noexcept { pool_.begin(pool, kReadsMax, buffers); }
    /// The longest message that this end reads, in bytes; 0 if it reads none.
    [[nodiscard]] std::uint32_t read_max() const noexcept {
        return pool_.pool() != nullptr ? pool_.pool()->memory().buffer_bytes : 0;
    }

    // ---- As a sender ----

    /// Messages of up to `bytes` bytes may be announced to the peer.
    void set_announce_max(std::uint32_t bytes) noexcept { announce_max_ = bytes; }
    [[nodiscard]] std::uint32_t announce_max() const noexcept { return announce_max_; }
    [[nodiscard]] bool can_announce(const WorkRequest& request, std::uint64_t length) const noexcept {
        return length <= announce_max_ && request.num_sge == 1 && request.rkey != 0 &&
               request.opcode != Opcode::send_with_inv && (request.flags & kInline) == 0;
    }
    /// Posts an announcement in place of the message. The caller has taken the message's credit. `number` is the
    /// message's number in this life of the queue pair. `peer_block` and `rkey` name the peer's control block.
    void announce(Turn& turn, WorkerSession& session, const WorkRequest& request, std::uint32_t number,
                  std::uint64_t peer_block, std::uint32_t rkey) noexcept;
    /// Whether an announced message has not ended yet.
    [[nodiscard]] bool open() const noexcept { return state_ != State::none; }
    /// Whether the announcement has arrived at the peer, and the message has not ended.
    [[nodiscard]] bool arrived() const noexcept { return state_ == State::arrived; }
    /// Whether the announcement has arrived, and the peer's count shows that the peer has read the message.
    [[nodiscard]] bool peer_has_read() const noexcept;
    /// Ends the announced message if the peer has read it. Returns the amount of work done.
    std::uint32_t end_announced(Turn& turn) noexcept;
    /// Called when the queue pair is in error. If the peer has not confirmed that it has read the announced message,
    /// the message fails. Its request ends behind all posted requests.
    void flush(Turn& turn) noexcept;
    [[nodiscard]] bool uses_key(std::uint32_t lkey) const noexcept {
        return state_ == State::arrived && request_.lkey == lkey;
    }

    // ---- As a receiver ----

    /// Called when a write with immediate has taken a receive. `used` is the number of messages that took receives
    /// before this write. Returns true if the write was an announcement; the receive then holds no message.
    [[nodiscard]] bool take_announcement(Turn& turn, const Completion& completion, std::uint32_t used) noexcept;
    /// Whether the read of an announced message is in flight.
    [[nodiscard]] bool reading() const noexcept { return reading_ == Reading::under_way; }
    [[nodiscard]] bool waits_for_buffer() const noexcept { return reading_ == Reading::waits; }
    [[nodiscard]] bool has_buffer() const noexcept { return pool_.wants(); }
    /// Starts the read of the announced message if a buffer is free. Returns the amount of work done.
    std::uint32_t read(Turn& turn) noexcept;

    // ---- As a sender and as a receiver ----

    /// Handles the completion of an announcement or of a read. Returns true if a message of the peer has been read;
    /// this end must then notify the peer.
    [[nodiscard]] bool completed(Turn& turn, const InFlightEntry& entry, const ibv_wc& wc) noexcept;
    /// Ends an announcement or a read that gets no completion.
    void lose(Turn& turn, const InFlightEntry& entry, Status status) noexcept;
    void begin_life() noexcept;
    void dismiss() noexcept { pool_.dismiss(); }

    void buffer_released(Turn& turn) noexcept override { turn.flows.add(flow_); }

private:
    enum class State : std::uint8_t {
        none,
        posted,   // the announcement is in flight; the send queue's table holds the request
        arrived,  // the announcement has arrived; request_ holds the request
    };
    enum class Reading : std::uint8_t { none, waits, under_way };

    void complete_announced(Turn& turn, const InFlightEntry& entry, const ibv_wc& wc) noexcept;
    [[nodiscard]] bool complete_read(Turn& turn, const InFlightEntry& entry, const ibv_wc& wc) noexcept;

    WorkerQp& qp_;
    Flow& flow_;
    ControlBlock& block_;
    // As a sender.
    std::uint32_t announce_max_ = 0;
    State state_ = State::none;
    bool flushed_ = false;
    InFlightEntry request_;
    std::uint32_t read_by_peer_ = 0;  // announced messages of this life that the peer has read
    // As a receiver.
    PoolTaker pool_{*this};
    Reading reading_ = Reading::none;
    Announcement what_;
    std::uint32_t imm_data_ = 0;
};

}  // namespace pollcore
