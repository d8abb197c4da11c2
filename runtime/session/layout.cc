#include "session/layout.hpp"

#include <new>

namespace pollcore {

void format_session(void* block, const SessionLayout& layout) noexcept {
    auto* header = new (block) SessionHeader;
    header->qps_max = layout.qps_max;
    header->submission_slots = layout.submission_slots;
    header->completion_slots = layout.completion_slots;
    header->pool_buffers = layout.pool_buffers;
    header->features = static_cast<std::uint16_t>((layout.wide ? SessionHeader::kWideCompletions : 0) |
                                                  (layout.worker_sleeps ? SessionHeader::kWorkerSleeps : 0));
    for (std::uint32_t i = 0; i < layout.qps_max; ++i) {
        new (at_offset<QpRecord>(block, layout.records()) + i) QpRecord;
        new (at_offset<std::atomic<std::uint64_t>>(block, layout.retired()) + i) std::atomic<std::uint64_t>(0);
    }
    for (std::uint32_t i = 0; i < kSrqsMax; ++i) {
        new (at_offset<SrqRecord>(block, layout.srq_records()) + i) SrqRecord;
    }
    format_ring<WorkRequest>(at_offset<void>(block, layout.submissions()), layout.submission_slots);
    format_ring<Completion>(at_offset<void>(block, layout.completions()), layout.completion_ring_slots());
}

}  // namespace pollcore
