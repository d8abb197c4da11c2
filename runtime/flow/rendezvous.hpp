// Messages by rendezvous: the sender announces a message, and the receiver reads it from the sender's memory. One at a
// time each way.
//
// The announcement is a request of the send queue like the message that it stands for, so everything that was posted
// before it has ended when it ends. The message's own request ends when the peer's count of messages that it has read
// says so.
//
// Thread safety: as Flow.
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

    /// `flow` has the queue pair's control block, and owns this.
    Rendezvous(WorkerQp& qp, Flow& flow, ControlBlock& block) : qp_(qp), flow_(flow), block_(block) {}

    /// Before the worker has it: messages are read into buffers of this pool.
    void read_into(BufferPool& pool, std::uint32_t buffers) noexcept { pool_.begin(pool, kReadsMax, buffers); }
    /// The longest message that is read; 0: none.
    [[nodiscard]] std::uint32_t read_max() const noexcept {
        return pool_.pool() != nullptr ? pool_.pool()->memory().buffer_bytes : 0;
    }

    // ---- As a sender ----

    /// A message of up to `bytes` bytes may be announced to the peer.
    void set_announce_max(std::uint32_t bytes) noexcept { announce_max_ = bytes; }
    [[nodiscard]] std::uint32_t announce_max() const noexcept { return announce_max_; }
    [[nodiscard]] bool can_announce(const WorkRequest& request, std::uint64_t length) const noexcept {
        return length <= announce_max_ && request.num_sge == 1 && request.rkey != 0 &&
               request.opcode != Opcode::send_with_inv && (request.flags & kInline) == 0;
    }
    /// Posts an announcement in place of the message, whose credit is taken. `number`: which of this life's messages it
    /// is. `peer_block`: address of the peer's control block.
    void announce(Turn& turn, WorkerSession& session, const WorkRequest& request, std::uint32_t number,
                  std::uint64_t peer_block, std::uint32_t rkey) noexcept;
    /// An announced message has not ended.
    [[nodiscard]] bool open() const noexcept { return state_ != State::none; }
    /// The announcement has arrived at the peer.
    [[nodiscard]] bool arrived() const noexcept { return state_ == State::arrived; }
    /// The announced message waits for the peer alone, and the peer says that it has read the message.
    [[nodiscard]] bool peer_has_read() const noexcept;
    /// Ends the announced message if the peer has read it. Returns how much was done.
    std::uint32_t end_announced(Turn& turn) noexcept;
    /// The queue pair is in error. A message of which the peer has not said that it was read fails, behind everything
    /// that was posted.
    void flush(Turn& turn) noexcept;
    [[nodiscard]] bool uses_key(std::uint32_t lkey) const noexcept {
        return state_ == State::arrived && request_.lkey == lkey;
    }

    // ---- As a receiver ----

    /// A write with immediate has taken a receive, after `used` messages had taken one. True: it was an announcement,
    /// so the receive holds no message.
    [[nodiscard]] bool take_announcement(Turn& turn, const Completion& completion, std::uint32_t used) noexcept;
    /// A message is being read.
    [[nodiscard]] bool reading() const noexcept { return reading_ == Reading::under_way; }
    [[nodiscard]] bool waits_for_buffer() const noexcept { return reading_ == Reading::waits; }
    [[nodiscard]] bool has_buffer() const noexcept { return pool_.wants(); }
    /// Reads what was announced, once there is a buffer for it. Returns how much was done.
    std::uint32_t read(Turn& turn) noexcept;

    // ---- Both ----

    /// True: a message of the peer was read, and the peer has to be told.
    [[nodiscard]] bool completed(Turn& turn, const InFlightEntry& entry, const ibv_wc& wc) noexcept;
    /// Ends an announcement or a read that no completion came for.
    void lose(Turn& turn, const InFlightEntry& entry, Status status) noexcept;
    void begin_life() noexcept;
    void dismiss() noexcept { pool_.dismiss(); }

    void buffer_released(Turn& turn) noexcept override { turn.flows.add(flow_); }

private:
    enum class State : std::uint8_t {
        none,
        posted,   // the announcement was posted; the request stands in the send queue's table
        arrived,  // the announcement has arrived; the request stands here
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
    std::uint32_t read_by_peer_ = 0;  // announced messages that have ended
    // As a receiver.
    PoolTaker pool_{*this};
    Reading reading_ = Reading::none;
    Announcement what_;
    std::uint32_t imm_data_ = 0;
};

}  // namespace pollcore
