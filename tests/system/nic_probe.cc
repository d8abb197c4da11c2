// Asks a device what no model of it can tell: what its firmware does with errors, whose hand writes a small receive, in which order
// data arrives, what a doorbell costs. It links nothing of this project. scripts/verify-nic runs it and makes a report.
//
//   nic_probe [--port N] [--gid INDEX] [--figures] [--list] DEVICE [ID]...
//
// Prints one line of JSON for each question: id, claim, outcome, text, figures. The outcome is held or failed where the project claims
// something, found where it does not, and absent where the device does not offer it. With --figures it measures, too.
// Exit codes: 0 each question has an answer, 2 usage, 4 the device cannot be used.
#include "nic_probe.hpp"

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
    std::printf("{\"id\": %s, \"claim\": %s, \"outcome\": \"%s\", \"text\": %s, \"figures\": {", quoted(question.id).c_str(),
                quoted(question.claim).c_str(), kNames[static_cast<int>(answer.outcome)], quoted(answer.text).c_str());
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
    require(device.port_attr.state == IBV_PORT_ACTIVE, "the port is not active");
    require(ibv_query_gid(device.context, device.port, device.gid_index, &device.gid) == 0, "there is no such GID");
    device.pd = made(ibv_alloc_pd(device.context), "cannot make a protection domain");
}

int usage() {
    std::fprintf(stderr, "usage: nic_probe [--port N] [--gid INDEX] [--figures] [--list] DEVICE [ID]...\n");
    return 2;
}

}  // namespace

int main(int argc, char** argv) {
    Device device;
    bool list = false;
    std::vector<std::string_view> words;
    for (int i = 1; i < argc; ++i) {
        const std::string_view word = argv[i];
        if (word == "--figures") {
            device.quick = false;
        } else if (word == "--list") {
            list = true;
        } else if ((word == "--port" || word == "--gid") && i + 1 < argc) {
            const int value = std::atoi(argv[++i]);
            word == "--port" ? static_cast<void>(device.port = static_cast<std::uint8_t>(value)) : static_cast<void>(device.gid_index = value);
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
    if (list) {
        for (const Question& question : questions) {
            std::printf("%s\t%s\n", question.id, question.claim);
        }
        return 0;
    }
    if (words.empty()) {
        return usage();
    }
    for (std::size_t i = 1; i < words.size(); ++i) {
        if (std::none_of(questions.begin(), questions.end(), [&](const Question& question) { return words[i] == question.id; })) {
            std::fprintf(stderr, "nic_probe: no question is called %s; --list prints them\n", std::string(words[i]).c_str());
            return 2;
        }
    }
    try {
        open(device, words[0]);
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
