// The completions of a session. They come by the completion ring. The completion of a marked request may instead be an
// answer in the request's own cache line, which is its slot of the submission ring (D50).
//
// At most one request is marked at a time. When it is submitted, this session has no other request in flight on the
// send queue, and the ring has no completion of that queue. So all other completions of that queue come after the
// completion of the marked request. take() looks at the request's slot and at the completion ring, and finds the
// completion in one of them. worker/worker_session.hpp has the worker's side.
//
// Thread safety: only the session's thread.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "base/bare.hpp"
#include "base/planted.hpp"
#include "pollcore/completion.hpp"
#include "pollcore/spsc_ring.hpp"
#include "pollcore/work_request.hpp"
#include "session/completion_opcode.hpp"
#include "session/layout.hpp"
#include "session/request_head.hpp"

namespace pollcore {

class CompletionInbox {
public:
    /// `submissions` has the slots of the requests.
    CompletionInbox(void* block, const SessionLayout& layout, const RingProducer<WorkRequest>& submissions)
        : completions_(at_offset<void>(block, layout.completions()), layout.completion_ring_slots()),
          submissions_(submissions),
          wide_(layout.wide),
          stages_(*at_offset<SessionStages>(block, layout.stages())),
          trace_(at_offset<SessionTrace>(block, layout.trace())->application) {}
    CompletionInbox(const CompletionInbox&) = delete;
    CompletionInbox& operator=(const CompletionInbox&) = delete;

    /// Whether there is a completion, in the ring or in the line of a request.
    [[nodiscard]] bool ready() const noexcept { return completions_.ready() || has_reply(); }
    /// Whether take() also looks at the line of a request, or for an answer that was saved from it.
    [[nodiscard]] bool awaits_reply() const noexcept { return awaited_ != 0; }

    /// Takes up to `out.size()` completions. `settle` subtracts the completed requests from the accounts:
    /// ends(completion) does this for any request, sends(qp, n) for n ordinary sends.
    template <class Record, class Settle>
    [[nodiscard]] [[gnu::always_inline]] std::size_t take(std::span<Record> out, Settle&& settle) noexcept {
        if (awaited_ != 0) {
            return take_awaiting(out, settle);
        }
        return wide_ == 0 ? take_from_ring<1>(out, settle) : take_wide(out, settle);
    }

    /// Completions that were taken.
    [[nodiscard]] [[gnu::always_inline]] std::uint64_t taken() const noexcept {
        return (completions_.released() >> wide_) + replied_;
    }
    /// Taken completions whose slots the worker knows to be free.
    [[nodiscard]] [[gnu::always_inline]] std::uint64_t given_back() const noexcept {
        return (completions_.published() >> wide_) + replied_;
    }
    /// Tells the worker which slots of the completion ring are free.
    void give_back() noexcept { completions_.publish(); }

    /// Marks a request if it may be answered in its line. Returns bits for the request's last word; 0 if the request is
    /// not marked. The caller has counted the request and is writing it into the next slot. `alone` is true if this
    /// session has no other request in the send queue, and the ring has no completion of a queue pair's earlier life.
    [[nodiscard]] [[gnu::always_inline]] std::uint64_t expect_reply(RequestHead head, bool alone) noexcept {
        if (marked_ || wide_ != 0 || (head.flags() & kSignaled) == 0 ||
            !allows(RequestHead::kRepliable, head.opcode()) || !alone) {
            return 0;
        }
        marked_ = true;
        awaited_ = submissions_.produced() + 1;
        return std::uint64_t{RequestHead::kReplyInLine} << RequestHead::kFlags;
    }
    /// To be called before the next `n` slots are written. If the marked request's slot is one of them, saves the
    /// answer from there. If there is no answer yet, the completion will come by the ring.
    [[gnu::always_inline]] void make_way(std::size_t n) noexcept {
        if (awaited_ != 0 && submissions_.produced() + n - awaited_ >= submissions_.capacity()) [[unlikely]] {
            keep_reply();
        }
    }

private:
    static constexpr std::uint64_t kKept = ~std::uint64_t{0};
    static constexpr std::uint32_t kFew = 2;  // after a burst of so few completions, the simple loop is the faster one
    // Positions of fields in the last word of a completion.
    static constexpr unsigned kStatus = 8 * (offsetof(Completion, status) % sizeof(Word));
    static constexpr unsigned kFlags = 8 * (offsetof(Completion, flags) % sizeof(Word));
    static constexpr unsigned kSampledAt = 8 * (offsetof(Completion, sampled_at) % sizeof(Word));

    [[nodiscard]] static constexpr std::uint32_t sampled_at(std::uint64_t last) noexcept {
        return static_cast<std::uint32_t>(last >> kSampledAt);
    }
    // Whether `last` is the last word of an ordinary completion: a send that succeeded, and was not followed for stage
    // latency. Such a completion only has to be counted.
    [[nodiscard]] static constexpr bool is_ordinary(std::uint64_t last) noexcept {
        constexpr std::uint64_t kOther = std::uint64_t{0xff} << kStatus |
                                         std::uint64_t{kFromRecvQueue | kPooled | kNotInLine} << kFlags |
                                         std::uint64_t{0xffffffff} << kSampledAt;
        return (last & kOther) == 0;
    }

    // Counts successive ordinary completions of one queue pair, to subtract them from its account together.
    struct Ended {
        std::uint32_t qp = bits_of(QpHandle{});
        std::uint32_t n = 0;
        template <class Settle>
        [[gnu::always_inline]] void settle(Settle&& settle) noexcept {
            settle.sends(std::bit_cast<QpHandle>(qp), std::exchange(n, 0));
        }
    };
    // `slot` is the first slot of a completion that is ready, and `last` is the last word of that slot.
    template <class Record, class Settle>
    [[gnu::always_inline]] void take_one(Record& record, const Completion* slot, std::uint64_t last, Ended& ended,
                                         Settle&& settle) noexcept {
        static_cast<Completion&>(record) = *slot;
        if constexpr (std::is_same_v<Record, WideCompletion>) {
            static_cast<CompletionExtension&>(record) =
                wide_ != 0 ? std::bit_cast<CompletionExtension>(slot[1]) : CompletionExtension{};
        }
        if (!kAdmission) {  // there are no accounts
            return;
        }
        const std::uint32_t qp = bits_of(slot->qp);
        if (!is_ordinary(last)) [[unlikely]] {
            ended.settle(settle);  // the account must be up to date for settle.ends()
            if ((record.flags & kNotInLine) != 0) {
                record.flags &= static_cast<std::uint8_t>(~kNotInLine);
                awaited_ = 0;
                marked_ = false;
            }
            if (const std::uint32_t since = sampled_at(last); since != 0) {
                sampled(since);
            }
            settle.ends(record);
        } else if (qp == ended.qp) [[likely]] {
            ++ended.n;
        } else {
            ended.settle(settle);
            ended = {qp, 1};
        }
    }
    // A completion takes kSlots slots. Both slots of a wide completion are published together, so the second slot is
    // ready when the first is (D39).
    template <std::size_t kSlots, class Record, class Settle>
    [[nodiscard]] [[gnu::always_inline]] std::size_t take_from_ring(std::span<Record> out, Settle&& settle) noexcept {
        Ended ended;
        std::uint64_t last = 0;
        std::size_t n = 0;
        if (last_burst_ <= kFew || !completions_.ready()) {
            for (; n < out.size() && completions_.ready(n * kSlots, last); ++n) {
                take_one(out[n], &completions_.slot(n * kSlots), last, ended, settle);
            }
        } else {
            // A worker publishes bursts. After one burst another is likely. Fetching all lines of the burst at once
            // makes the poll a fifth faster (D3).
            completions_.prefetch_next(std::min<std::size_t>(last_burst_, out.size()) * kSlots);
            const auto front = completions_.front();
            for (bool more = true; more;) {
                const auto run = front.run(n * kSlots);
                const std::size_t most = std::min(out.size() - n, run.size() / kSlots);
                std::size_t i = 0;
                for (; i < most && run.ready(i * kSlots, last); ++i, ++n) {
                    take_one(out[n], &run.slot(i * kSlots), last, ended, settle);
                }
                more = i == most && n < out.size();  // the next run begins at the beginning of the ring's memory
            }
        }
        if (n > 0) {
            ended.settle(settle);
            completions_.release(n * kSlots);
            last_burst_ = static_cast<std::uint32_t>(n);
        }
        return n;
    }

    template <class Record, class Settle>
    [[nodiscard]] [[gnu::noinline]] std::size_t take_wide(std::span<Record> out, Settle&& settle) noexcept {
        return take_from_ring<2>(out, settle);
    }
    // Not inlined, because few completions come this way, and the loop is long.
    template <class Record, class Settle>
    [[nodiscard]] [[gnu::noinline]] std::size_t take_few(std::span<Record> out, Settle&& settle) noexcept {
        return wide_ == 0 ? take_from_ring<1>(out, settle) : take_wide(out, settle);
    }

    // Each turn looks at the completion ring first and then at the request's line. If the answer is not there, all
    // completions that were seen in the ring come before the answer.
    template <class Record, class Settle>
    [[nodiscard]] [[gnu::always_inline]] std::size_t take_awaiting(std::span<Record> out, Settle&& settle) noexcept {
        std::size_t n = 0;
        while (n < out.size()) {
            if (awaited_ == 0) {
                return n + take_few(out.subspan(n), settle);
            }
            const std::size_t ready = completions_.ready() ? completions_.peek((out.size() - n) << wide_) >> wide_ : 0;
            if (!(planted(Bug::ring_first) && ready != 0) && take_reply(out[n])) {
                settle.sends(out[n].qp, 1);
                if constexpr (std::is_same_v<Record, WideCompletion>) {
                    static_cast<CompletionExtension&>(out[n]) = {};
                }
                ++n;
            } else if (ready != 0) {
                n += take_few(out.subspan(n, ready), settle);
            } else {
                break;
            }
        }
        return n;
    }

    [[nodiscard]] [[gnu::always_inline]] bool has_reply() const noexcept {
        if (awaited_ == 0 || awaited_ == kKept) {
            return awaited_ == kKept;
        }
        std::uint64_t last = 0;
        (void)submissions_.answered(awaited_ - 1, last);
        return (RequestHead(last).flags() & RequestHead::kReplied) != 0;
    }
    // Reads the answer from the marked request's slot. Returns false if there is no answer yet.
    [[nodiscard]] [[gnu::always_inline]] bool read_reply(Completion& completion) noexcept {
        std::uint64_t last = 0;
        const WorkRequest& request = submissions_.answered(awaited_ - 1, last);
        const RequestHead head(last);
        if ((head.flags() & RequestHead::kReplied) == 0) {
            return false;
        }
        const std::uint64_t word = SharedWords(words_of(const_cast<WorkRequest&>(request)))[RequestHead::kReplyWord];
        completion = Completion{};
        completion.tag = request.tag;
        completion.qp = request.qp;
        completion.byte_len = static_cast<std::uint32_t>(word);
        completion.opcode = completion_opcode(head.opcode());
        if (const auto since = static_cast<std::uint32_t>(word >> 32); since != 0) [[unlikely]] {
            sampled(since);
        }
        return true;
    }
    // Takes the awaited answer. Returns false if there is no answer yet.
    [[nodiscard]] [[gnu::always_inline]] bool take_reply(Completion& completion) noexcept {
        if (awaited_ == kKept) [[unlikely]] {
            completion = kept_;
        } else if (!read_reply(completion)) {
            return false;
        }
        awaited_ = 0;
        marked_ = false;
        ++replied_;
        return true;
    }
    void keep_reply() noexcept;
    void sampled(std::uint32_t since) noexcept;

    RingConsumer<Completion> completions_;
    const RingProducer<WorkRequest>& submissions_;
    std::uint32_t wide_;            // a completion takes 1 << wide_ slots of the ring
    std::uint32_t last_burst_ = 0;  // completions that the last successful poll took from the ring
    // One more than the index of the slot in which the marked request may be answered. 0 means no slot. kKept means
    // that the request was answered, and kept_ is the answer.
    std::uint64_t awaited_ = 0;
    std::uint64_t replied_ = 0;  // completions that came as answers in a request's line
    bool marked_ = false;        // a marked request has not completed
    SessionStages& stages_;
    RecentLog<1>& trace_;
    Completion kept_;  // an answer saved from its slot, because the slot had to be written before the answer was polled
};

}  // namespace pollcore
