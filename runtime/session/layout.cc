#include "session/layout.hpp"

#include <algorithm>
#include <new>
#include <string>

#include "base/printable.hpp"
#include "pollcore/error.hpp"

namespace pollcore {
namespace {

void require_ring_size(const char* what, std::uint32_t slots) {
    if (!std::has_single_bit(slots) || slots > kRingSlotsMax) {
        throw Error(EINVAL, std::string(what) + " = " + std::to_string(slots) +
                                ": accepted is a power of two from 1 to " + std::to_string(kRingSlotsMax));
    }
}

}  // namespace

void require_name(std::string_view name) {
    const bool plain = std::all_of(name.begin(), name.end(), [](char c) { return c >= ' ' && c <= '~'; });
    if (name.size() > kNameLengthMax || !plain) {
        throw Error(EINVAL, "name = " + printable(name.substr(0, kNameLengthMax)) +
                                (name.size() > kNameLengthMax ? "..." : "") + ": accepted is up to " +
                                std::to_string(kNameLengthMax) + " printable ASCII characters");
    }
}

void require_valid(const SessionOptions& options) {
    require_name(options.name);
    require_ring_size("submission_slots", options.submission_slots);
    require_ring_size("completion_slots", options.completion_slots);
    const std::uint32_t most = options.wide_completions ? kRingSlotsMax / 2 : kRingSlotsMax;
    if (options.pool_buffers > most || options.completion_slots + options.pool_buffers > most) {
        throw Error(EINVAL, "completion_slots = " + std::to_string(options.completion_slots) +
                                " and pool_buffers = " + std::to_string(options.pool_buffers) +
                                (options.wide_completions ? " with wide completions" : "") + ": accepted is up to " +
                                std::to_string(most) + " together");
    }
    if (options.device_time && !options.wide_completions) {
        throw Error(EINVAL, "device_time needs wide_completions: only wide completions have room for a time stamp");
    }
}

namespace {

std::uint16_t features_of(const SessionLayout& layout) noexcept {
    return static_cast<std::uint16_t>((layout.wide ? SessionHeader::kWideCompletions : 0) |
                                      (layout.worker_sleeps ? SessionHeader::kWorkerSleeps : 0));
}

}  // namespace

void format_session(void* block, const SessionLayout& layout) noexcept {
    auto* header = new (block) SessionHeader;
    header->qps_max = layout.qps_max;
    header->submission_slots = layout.submission_slots;
    header->completion_slots = layout.completion_slots;
    header->pool_buffers = layout.pool_buffers;
    header->features = features_of(layout);
    for (std::uint32_t i = 0; i < layout.qps_max; ++i) {
        new (at_offset<QpRecord>(block, layout.records()) + i) QpRecord;
        new (at_offset<std::atomic<std::uint64_t>>(block, layout.retired()) + i) std::atomic<std::uint64_t>(0);
    }
    for (std::uint32_t i = 0; i < kSrqsMax; ++i) {
        new (at_offset<SrqRecord>(block, layout.srq_records()) + i) SrqRecord;
    }
    new (at_offset<SessionStages>(block, layout.stages())) SessionStages;
    new (at_offset<SessionRefusals>(block, layout.refusals())) SessionRefusals;
    new (at_offset<SessionTrace>(block, layout.trace())) SessionTrace;
    format_ring<WorkRequest>(at_offset<void>(block, layout.submissions()), layout.submission_slots);
    format_ring<Completion>(at_offset<void>(block, layout.completions()), layout.completion_ring_slots());
    // Release, pairs with the acquire in is_formatted: the rest of the block is visible before the version.
    std::atomic_ref(header->version).store(SessionHeader::kVersion, std::memory_order_release);
}

bool is_formatted(void* block, const SessionLayout& layout) noexcept {
    SessionHeader& header = *session_header(block);
    return std::atomic_ref(header.version).load(std::memory_order_acquire) == SessionHeader::kVersion &&
           header.magic == SessionHeader::kMagic && header.features == features_of(layout) &&
           header.qps_max == layout.qps_max && header.submission_slots == layout.submission_slots &&
           header.completion_slots == layout.completion_slots && header.pool_buffers == layout.pool_buffers;
}

}  // namespace pollcore
