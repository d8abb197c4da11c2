// Asks a device questions that no model of the device can answer: how its firmware handles errors, whether the NIC or
// the library writes the data of a small receive, in which order data arrives, and the cost of a doorbell. This program
// links nothing of this project. scripts/verify-nic runs it and makes a report.
//
//   nic_probe [--gid INDEX] [--figures] DEVICE [ID]...
//   nic_probe --describe DEVICE
//
// Prints one line of JSON for each question: id, claim, outcome, text, figures. The outcome is held or failed if the
// project makes a claim, found if it makes none, and absent if the device does not offer the feature. With --figures
// the program also measures. --describe prints a description of the device, and its GIDs. Exit codes: 0 each question
// has an answer, 2 usage, 4 the device cannot be used.
#include "nic_probe.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace {

using namespace nic;

std::string quoted(std::string_view text) {
    std::string made = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            made += '\\';
        }
        made += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    return made + "\"";
}

void print(const Question& question, const Answer& answer) {
    static constexpr const char* kNames[] = {"held", "failed", "found", "absent"};
    std::printf("{\"id\": %s, \"claim\": %s, \"outcome\": \"%s\", \"text\": %s, \"figures\": {",
                quoted(question.id).c_str(), quoted(question.claim).c_str(), kNames[static_cast<int>(answer.outcome)],
                quoted(answer.text).c_str());
    const char* between = "";
    for (const auto& [name, value] : answer.figures) {
        std::printf("%s%s: %.6g", between, quoted(name).c_str(), value);
        between = ", ";
    }
    std::printf("}}\n");
    std::fflush(stdout);
}

Answer answer(const Question& question, const Device& device) {
    try {
        return question.ask(device);
    } catch (const NotOffered& error) {
        return {Outcome::absent, error.what()};
    } catch (const std::exception& error) {
        return {Outcome::failed, error.what()};
    }
}

void open(Device& device, std::string_view name) {
    ibv_device** list = made(ibv_get_device_list(nullptr), "cannot list the RDMA devices");
    for (ibv_device** each = list; *each != nullptr; ++each) {
        if (name == ibv_get_device_name(*each)) {
            device.context = made(ibv_open_device(*each), "cannot open the device");
        }
    }
    ibv_free_device_list(list);
    require(device.context != nullptr, "there is no such device");
    device.extended = ibv_query_device_ex(device.context, nullptr, &device.attr) == 0;
    if (!device.extended) {
        const int error = ibv_query_device(device.context, &device.attr.orig_attr);
        require(error == 0, "cannot query the device", error);
    }
    const int error = ibv_query_port(device.context, device.port, &device.port_attr);
    require(error == 0, "cannot query the port", error);
    require(device.port_attr.state == IBV_PORT_ACTIVE,
            "port 1 is not active: see to its cable and its network interface, by `rdma link`");
    require(ibv_query_gid(device.context, device.port, device.gid_index, &device.gid) == 0, "there is no such GID");
    device.pd = made(ibv_alloc_pd(device.context), "cannot make a protection domain");
}

void describe(const Device& device) {
    const ibv_device_attr& attr = device.attr.orig_attr;
    std::printf("{\"firmware\": %s, \"vendor\": %u, \"part\": %u, \"link_layer\": \"%s\", \"mtu\": %d, \"gids\": [",
                quoted(attr.fw_ver).c_str(), attr.vendor_id, attr.vendor_part_id,
                device.port_attr.link_layer == IBV_LINK_LAYER_INFINIBAND ? "InfiniBand" : "Ethernet",
                128 << device.port_attr.active_mtu);
    std::vector<ibv_gid_entry> table(static_cast<std::size_t>(device.port_attr.gid_tbl_len) * attr.phys_port_cnt);
    const ssize_t count = ibv_query_gid_table(device.context, table.data(), table.size(), 0);
    const char* between = "";
    for (ssize_t i = 0; i < count; ++i) {
        const ibv_gid_entry& entry = table[static_cast<std::size_t>(i)];
        char text[INET6_ADDRSTRLEN];
        if (entry.port_num == device.port && inet_ntop(AF_INET6, entry.gid.raw, text, sizeof text) != nullptr) {
            std::printf("%s{\"index\": %u, \"gid\": \"%s\", \"type\": \"%s\"}", between, entry.gid_index, text,
                        entry.gid_type == IBV_GID_TYPE_ROCE_V2   ? "RoCE v2"
                        : entry.gid_type == IBV_GID_TYPE_ROCE_V1 ? "RoCE v1"
                                                                 : "IB");
            between = ", ";
        }
    }
    std::printf("]}\n");
}

int usage() {
    std::fprintf(stderr, "usage: nic_probe [--gid INDEX] [--figures] DEVICE [ID]..., nic_probe --describe DEVICE\n");
    return 2;
}

}  // namespace

int main(int argc, char** argv) {
    Device device;
    bool describes = false;
    std::vector<std::string_view> words;
    for (int i = 1; i < argc; ++i) {
        const std::string_view word = argv[i];
        if (word == "--figures") {
            device.quick = false;
        } else if (word == "--describe") {
            describes = true;
        } else if (word == "--gid" && i + 1 < argc) {
            device.gid_index = std::atoi(argv[++i]);
        } else if (word.starts_with("-")) {
            return usage();
        } else {
            words.push_back(word);
        }
    }
    std::vector<Question> questions = behaviour();
    for (Question& question : costs()) {
        questions.push_back(std::move(question));
    }
    if (words.empty()) {
        return usage();
    }
    for (std::size_t i = 1; i < words.size(); ++i) {
        if (std::none_of(questions.begin(), questions.end(),
                         [&](const Question& question) { return words[i] == question.id; })) {
            std::fprintf(stderr, "nic_probe: no question is called %s\n", std::string(words[i]).c_str());
            return 2;
        }
    }
    try {
        open(device, words[0]);
        if (describes) {
            describe(device);
            return 0;
        }
    } catch (const std::exception& error) {
        std::fprintf(stderr, "nic_probe: %s: %s\n", std::string(words[0]).c_str(), error.what());
        return 4;
    }
    for (const Question& question : questions) {
        const bool asked = words.size() == 1 || std::find(words.begin() + 1, words.end(), question.id) != words.end();
        if (asked && !(question.costs && device.quick)) {
            print(question, answer(question, device));
        }
    }
    ibv_dealloc_pd(device.pd);
    ibv_close_device(device.context);
    return 0;
}
