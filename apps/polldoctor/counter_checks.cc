// What the devices' firmware and drivers have counted that should not happen, or seldom.
//
// Sources: Documentation/ABI/stable/sysfs-class-infiniband (counters, hw_counters), NVIDIA's "Understanding mlx5 Linux
// counters", drivers/infiniband/sw/rxe/rxe_hw_counters.c of the kernel.
#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "check_groups.hpp"
#include "device_counters.hpp"

namespace pollcore::doctor {
namespace {

struct Meaning {
    std::string_view name;
    std::string_view means;
    std::string_view mend;
};

constexpr std::string_view kPostMore =
    "post more receives, or let the peers use a flow control (flow = \"credits\" of a service)";
constexpr std::string_view kLosses = "look for losses in the network: PFC, ECN, cables, the switches' counters";
constexpr std::string_view kCable = "look at cable, transceiver and port of the switch";
constexpr std::string_view kProgram =
    "find the program whose completions have errors: pollstat, journalctl -u pollcored";
constexpr std::string_view kCongestion = "find out who sends more than its receiver takes; see ECN and PFC";

constexpr Meaning kMeanings[] = {
    // hw_counters of mlx5, and those that other drivers have by the same name
    {"out_of_buffer", "packets came for queue pairs without a receive", kPostMore},
    {"rnr_nak_retry_err", "peers had no receive, and the retries ran out", kPostMore},
    {"packet_seq_err", "peers said that packets were missing (NAK)", kLosses},
    {"out_of_sequence", "packets came in the wrong order, so some were lost", kLosses},
    {"duplicate_request", "requests came twice, so acknowledgements were lost or late", kLosses},
    {"implied_nak_seq_err", "acknowledgements were missing before a later one", kLosses},
    {"local_ack_timeout_err", "no acknowledgement came in time", kLosses},
    {"roce_adp_retrans", "packets were sent again", kLosses},
    {"roce_adp_retrans_to", "packets were sent again after a timeout", kLosses},
    {"roce_slow_restart", "sending began again slowly after losses", kLosses},
    {"rx_icrc_encapsulated", "packets came with a wrong checksum", kCable},
    {"np_ecn_marked_roce_packets", "switches marked packets: their queues were long", kCongestion},
    {"np_cnp_sent", "this host told senders to slow down", kCongestion},
    {"rp_cnp_handled", "receivers told this host to slow down", kCongestion},
    {"rp_cnp_ignored", "receivers told this host to slow down, and it did not", kCongestion},
    {"req_cqe_error", "requests of this host ended with an error", kProgram},
    {"resp_cqe_error", "receives of this host ended with an error", kProgram},
    {"req_remote_invalid_request", "peers refused requests as invalid", kProgram},
    {"req_remote_access_errors", "peers refused access to their memory", kProgram},
    {"resp_remote_access_errors", "peers tried to use memory that they may not use", kProgram},
    {"resp_local_length_error", "messages were longer than their receives", kProgram},
    {"req_transport_retries_exceeded", "the retries of requests ran out", kLosses},
    {"req_rnr_retries_exceeded", "peers had no receive, and the retries ran out", kPostMore},
    // hw_counters of Soft-RoCE
    {"rcvd_rnr_err", "peers had no receive (RNR NAK)", kPostMore},
    {"send_rnr_err", "this host had no receive (RNR NAK)", kPostMore},
    {"rcvd_seq_err", "peers said that packets were missing (NAK)", kLosses},
    {"out_of_seq_request", "packets came in the wrong order, so some were lost", kLosses},
    {"duplicate_request_err", "requests came twice, so acknowledgements were lost or late", kLosses},
    {"retry_exceeded_err", "retries ran out", kLosses},
    {"retry_rnr_exceeded_err", "peers had no receive, and the retries ran out", kPostMore},
    {"completer_retry_err", "requests were sent again", kLosses},
    // counters: those of the port
    {"symbol_error", "symbols on the link were wrong", kCable},
    {"link_error_recovery", "the link had to recover", kCable},
    {"link_downed", "the link went down", kCable},
    {"local_link_integrity_errors", "the link had many errors in a row", kCable},
    {"port_rcv_errors", "packets came damaged", kCable},
    {"port_rcv_remote_physical_errors", "packets came that another link had damaged", kCable},
    {"port_xmit_discards", "packets were dropped before they were sent", kCongestion},
    {"port_xmit_wait", "the port waited until the network took its packets", kCongestion},
    {"excessive_buffer_overrun_errors", "buffers of the port overran", kCongestion},
    {"VL15_dropped", "packets of the subnet management were dropped", kCable},
};

std::vector<Finding> device_counters(const Facts& facts) {
    std::vector<Finding> found;
    for (const JudgedDevice& device : present_devices(facts)) {
        std::size_t read = 0;
        std::size_t known = 0;
        std::size_t zero = 0;
        for (const std::string& file : counter_files(facts.now(), device.verbs_name, device.port)) {
            const auto value = facts.now().number(file);
            const std::string name = file.substr(file.rfind('/') + 1);
            const auto meaning = std::find_if(std::begin(kMeanings), std::end(kMeanings),
                                              [&](const Meaning& each) { return each.name == name; });
            read += value ? 1 : 0;
            if (!value || meaning == std::end(kMeanings)) {
                continue;
            }
            ++known;
            const auto after = facts.later() != nullptr ? facts.later()->number(file) : std::nullopt;
            const double grown = after ? *after - *value : 0;
            if (*value == 0 && grown <= 0) {
                ++zero;
                continue;
            }
            found.push_back(
                {.about = device.about(),
                 .severity = grown > 0 ? Severity::warning : Severity::note,
                 .sure = grown > 0,
                 .seen = fmt::format(
                     "{} is {:.0f}{}: {}", name, after.value_or(*value),
                     grown > 0 ? fmt::format(", and grew by {:.0f} within {:.1f} s", grown, facts.seconds()) : "",
                     meaning->means),
                 .source = file,
                 .cost =
                     grown > 0
                         ? Cost::measured(fmt::format("it happens {:.1f} times a second now", grown / facts.seconds()))
                         : Cost::not_measured("it happened since the device's driver was loaded; whether it still "
                                              "does is not known"),
                 .mend = std::string(meaning->mend)});
        }
        const std::string directory = device.port_directory() + "/hw_counters";
        if (read == 0) {
            found.push_back(not_judged(device.about(), "no counter can be read", directory));
        } else if (zero == known) {
            found.push_back({.about = device.about(),
                             .seen = fmt::format("{} counters of {} count errors, and all are 0", known, read),
                             .source = directory});
        }
    }
    return found;
}

constexpr Check kCounterChecks[] = {
    {"device-counters", "what devices have counted that should not happen", &device_counters,
     "there is no verbs device"},
};

}  // namespace

std::span<const Check> counter_checks() noexcept {
    return kCounterChecks;
}

}  // namespace pollcore::doctor
