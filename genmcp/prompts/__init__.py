from genmcp.prompts.prompt import PromptRepo as PromptRepo
