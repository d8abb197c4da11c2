// Notes what a test of this suite did on the device, provided that the device carried it out. If the test passes, the
// notes go into the report of the run (--gtest_output). From the reports, scripts/supported makes the table of what
// works.
//
// Thread safety: the test's thread.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>

#include <gtest/gtest.h>

#include "pollcore/context.hpp"

namespace pollcore::testing {

class Exercised {
public:
    static Exercised& get() {
        static Exercised all;
        return all;
    }

    /// Begins a test with no notes.
    void begin() { *this = Exercised(); }
    /// Drops the test's notes. A test calls this if chance decides what happens, because its notes then say nothing
    /// about what works.
    void ignore() { ignored_ = true; }
    /// Ends a test. Writes its notes into the report, unless the test failed or has called ignore().
    void end() const {
        if (ignored_ || items_.empty() || ::testing::Test::HasFailure()) {
            return;
        }
        std::string text;
        for (const std::string& item : items_) {
            text += (text.empty() ? "" : "; ") + item;
        }
        ::testing::Test::RecordProperty("exercised", text);
    }

    /// `group` is a row of the table. The test itself must have checked that `item` works.
    void note(std::string_view group, std::string_view item) {
        items_.insert(std::string(group) + ": " + std::string(item));
    }

    void created(QpHandle qp, const QueuePairOptions& options) {
        types_[qp] = options.type;
        two_cqs_[qp] = options.separate_cqs;
        shared_[qp] = options.shares.size() > 1;
    }
    void submitted(const WorkRequest& request) { submitted(request, request.num_sge, (request.flags & kInline) != 0); }
    void submitted(const WorkRequest& request, std::size_t num_sge, bool with_inline) {
        requests_[{request.qp, is_recv(request.opcode), request.tag}] = {request.opcode, request.flags, num_sge,
                                                                         with_inline};
    }
    void retired(std::uint32_t requests) {
        if (requests > 0) {
            note("work requests", "unsignaled");
        }
    }
    void completed(const Completion& completion) {
        if ((completion.flags & kByRuntime) == 0) {
            const auto status = static_cast<unsigned>(completion.status);
            note("statuses", two_digits(status) + " " + std::string(status_name(completion.status)));
        }
        const auto type = types_.find(completion.qp);
        if (!completion.ok() || type == types_.end()) {
            return;
        }
        if (completion.from_recv_queue()) {
            const bool by_write = completion.opcode == CompletionOpcode::recv_rdma_with_imm;
            note(completion.srq.valid() ? "SRQ" : type_name(type->second),
                 by_write ? "91 RECV_RDMA_WITH_IMM" : "90 RECV");
        }
        const auto request = requests_.find({completion.qp, completion.from_recv_queue(), completion.tag});
        if (request == requests_.end()) {
            return;
        }
        const Request& was = request->second;
        if (!completion.from_recv_queue()) {
            note(type_name(type->second), opcode_name(was.opcode));
        }
        note_if((was.flags & kFence) != 0, "work requests", "fence");
        note_if((was.flags & kSolicited) != 0, "work requests", "solicited");
        note_if(was.with_inline, "work requests", "inline");
        note_if(!was.with_inline && was.num_sge == 0 && !is_local(was.opcode), "work requests", "no SGE");
        note_if(was.num_sge > 1, "work requests", "several SGEs");
        note_if(two_cqs_[completion.qp], "queue pairs", "a CQ for each queue");
        note_if(shared_[completion.qp], "queue pairs", "shared by sessions");
    }

private:
    struct Request {
        Opcode opcode{};
        std::uint8_t flags = 0;
        std::size_t num_sge = 0;
        bool with_inline = false;
    };

    void note_if(bool met, std::string_view group, std::string_view item) {
        if (met) {
            note(group, item);
        }
    }
    // The number before a name sorts the names in the order of the verbs. The table leaves the numbers out.
    static std::string two_digits(unsigned number) { return (number < 10 ? "0" : "") + std::to_string(number); }
    static std::string opcode_name(Opcode opcode) {
        constexpr std::string_view kNames[] = {
            "RDMA_WRITE",         "RDMA_WRITE_WITH_IMM",  "SEND",      "SEND_WITH_IMM", "RDMA_READ",
            "ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD", "LOCAL_INV", "BIND_MW",       "SEND_WITH_INV"};
        const auto value = static_cast<unsigned>(opcode);
        return two_digits(value) + " " + std::string(value < std::size(kNames) ? kNames[value] : "?");
    }
    static std::string_view type_name(QpType type) {
        switch (type) {
            case QpType::rc: return "RC";
            case QpType::uc: return "UC";
            case QpType::ud: return "UD";
        }
        return "?";
    }

    bool ignored_ = false;
    std::set<std::string> items_;
    std::map<QpHandle, QpType> types_;
    std::map<QpHandle, bool> two_cqs_;
    std::map<QpHandle, bool> shared_;
    std::map<std::tuple<QpHandle, bool, std::uint64_t>, Request> requests_;
};

/// A session that notes its requests and completions for the test. The fixture notes requests that are submitted as a
/// batch.
class TestSession : public Session {
public:
    TestSession() = default;
    explicit(false) TestSession(Session&& session) : Session(std::move(session)) {}

    using Session::poll;
    using Session::try_submit;

    [[nodiscard]] Refusal try_submit(const WorkRequest& request) noexcept {
        return noted(Session::try_submit(request), request, request.num_sge, (request.flags & kInline) != 0);
    }
    [[nodiscard]] Refusal try_submit(const WorkRequest& request, std::span<const Sge> sges) noexcept {
        return noted(Session::try_submit(request, sges), request, sges.size(), false);
    }
    [[nodiscard]] Refusal try_submit_inline(const WorkRequest& request, std::span<const std::byte> payload) noexcept {
        return noted(Session::try_submit_inline(request, payload), request, 0, true);
    }
    [[nodiscard]] std::size_t poll(std::span<Completion> out) noexcept { return noted(out, Session::poll(out)); }
    [[nodiscard]] std::size_t poll(std::span<WideCompletion> out) noexcept { return noted(out, Session::poll(out)); }
    [[nodiscard]] std::uint32_t retired(QpHandle qp) noexcept {
        const std::uint32_t requests = Session::retired(qp);
        Exercised::get().retired(requests);
        return requests;
    }

private:
    template <class Record>
    static std::size_t noted(std::span<Record> out, std::size_t n) {
        for (const Completion& completion : out.first(n)) {
            Exercised::get().completed(completion);
        }
        return n;
    }
    static Refusal noted(Refusal refusal, const WorkRequest& request, std::size_t num_sge, bool with_inline) {
        if (refusal == Refusal::none) {
            Exercised::get().submitted(request, num_sge, with_inline);
        }
        return refusal;
    }
};

}  // namespace pollcore::testing
